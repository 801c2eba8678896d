//! Plans that can never run there, known before anybody is asked or paid.

use std::time::Duration;

use super::super::{Class, ProviderError, Result};
use crate::{
    catalogue::{self, Accelerator},
    job::{gce::GcePlan, plan::Plan},
};

/// The shortest time that is charged.
const SHORTEST: Duration = Duration::from_secs(60);
/// Longest run that Compute Engine allows.
pub const LONGEST: Duration = Duration::from_secs(120 * 86_400);

pub fn check(plan: &Plan, wanted: &GcePlan) -> Result<()> {
    let refuse = |message: String, fix: String| Err(ProviderError::new(Class::Invalid, message).fix(fix));
    if !(SHORTEST..=LONGEST).contains(&plan.ttl.0) {
        let message = format!("a machine may run for a minute at least and 120 days at most, not {}", plan.ttl);
        return refuse(message, "give --ttl, or limits.ttl, another time".to_owned());
    }
    let Some(card) = wanted.card() else { return Ok(()) };
    let name = &wanted.accelerator;
    if let Some(variant) = plan.image.variant.filter(|variant| !has_kernels(variant.name(), card)) {
        let message = format!("the build `{}` of libtorch has no kernels for a {name}", variant.name());
        let builds = catalogue::gce().libtorch.keys().map(String::as_str).filter(|build| has_kernels(build, card));
        return refuse(message, format!("of its builds these have: {}", builds.collect::<Vec<_>>().join(", ")));
    }
    if let Some(why) = unknown_to_driver(wanted, wanted.boot_image.as_ref().unwrap_or(&wanted.image_family)) {
        return refuse(why, "name an older one in compute.gce.image_family or boot_image".to_owned());
    }
    Ok(())
}

/// Whether a build of libtorch can compute on it. The one for CPUs cannot on any.
fn has_kernels(variant: &str, card: &Accelerator) -> bool {
    catalogue::gce().has_kernels(variant, card.compute_capability)
}

/// Why the driver of a boot image does not know the plan's GPU, as far as the image's name tells.
pub fn unknown_to_driver(plan: &GcePlan, image: &str) -> Option<String> {
    let (card, branch, drivers) = (plan.card()?, driver(image)?, &catalogue::gce().drivers);
    let known = card.compute_capability >= drivers.compute_capability || branch <= drivers.branch;
    let name = &plan.accelerator;
    let why = format!(
        "the boot image {image} has a driver of branch {branch}, which does not know a {name}: {} was the last",
        drivers.branch
    );
    (!known).then_some(why)
}

/// The driver's branch, where the name of a family tells it: `common-cu128-ubuntu-2204-nvidia-570`.
fn driver(family: &str) -> Option<u32> {
    family.split("nvidia-").nth(1)?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        job::{gce::GceSpec, image::LibtorchVariant, units::Span},
        provider::conformance,
    };

    fn refused(change: impl Fn(&mut Plan)) -> String {
        refused_on(&GcePlan::default(), change)
    }

    fn refused_on(wanted: &GcePlan, change: impl Fn(&mut Plan)) -> String {
        let mut plan = conformance::plan();
        change(&mut plan);
        check(&plan, wanted).map_or_else(|error| error.message, |()| String::new())
    }

    fn on(accelerator: &str) -> Box<GcePlan> {
        Box::new(GceSpec { accelerator: Some(accelerator.into()), ..GceSpec::default() }.into())
    }

    #[test]
    fn times_that_cannot_be_are_refused() {
        let day = Duration::from_secs(86_400);
        assert_eq!(refused(|plan| plan.ttl = Span(120 * day)), "");
        assert!(refused(|plan| plan.ttl = Span(121 * day)).contains("120 days at most"));
    }

    #[test]
    fn a_driver_that_does_not_know_the_gpu_is_refused() {
        let family =
            |accelerator: &str, family: &str| refused_on(&GcePlan { image_family: family.to_owned(), ..*on(accelerator) }, |_| ());
        assert_eq!(family("v100", "pytorch-latest-gpu"), "", "its name tells nothing");
        assert_eq!(family("v100", "common-cu129-ubuntu-2204-nvidia-580"), "");
        assert_eq!(family("t4", "common-cu130-ubuntu-2404-nvidia-590"), "");
        let message = family("v100", "common-cu130-ubuntu-2404-nvidia-590");
        assert!(message.contains("driver of branch 590, which does not know a v100: 580 was the last"), "{message}");
        assert!(family("p100", "common-cu130-ubuntu-2404-nvidia-590").contains("does not know a p100"));
    }

    #[test]
    fn a_libtorch_without_kernels_for_the_gpu_is_refused() {
        for (accelerator, variants) in [("p100", vec!["cu126"]), ("v100", vec!["cu126"]), ("t4", vec!["cu126", "cu130"])] {
            let card = on(accelerator).card().expect("known");
            let can: Vec<&str> = ["cpu", "cu126", "cu130"].into_iter().filter(|variant| has_kernels(variant, card)).collect();
            assert_eq!(can, variants, "{accelerator}");
        }
        let message = refused(|plan| plan.image.variant = Some(LibtorchVariant::Cpu));
        assert_eq!(message, "the build `cpu` of libtorch has no kernels for a v100");
    }
}
