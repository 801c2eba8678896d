//! The boot image of a plan: one by its name, or what a family means today.

use super::{
    super::ProviderError,
    client::{Call, Client},
    possible,
};
use crate::job::{finding::Finding, gce::GcePlan};

const WHAT: &str = "boot image";

/// Whether a machine of this plan can begin with it. Changes nothing.
pub async fn check(client: &Client, plan: &GcePlan) -> Finding {
    let wanted = plan.boot_image.as_ref().unwrap_or(&plan.image_family);
    let of_project = format!("{wanted} of {}", plan.image_project);
    // Below another project than one's own.
    let image = match client.call(Call::get(format!("../{}", plan.boot_source()))).await {
        Ok(image) => image,
        Err(refusal) if refusal.is_absent() => {
            return Finding::bad(
                WHAT,
                format!("there is no {of_project}"),
                "name another in compute.gce.image_family or boot_image, and its image_project",
            );
        }
        Err(refusal) => {
            let error = ProviderError::from(refusal);
            return Finding::notice(WHAT, format!("{of_project}: not known: {}", error.message), error.fix.unwrap_or_default());
        }
    };
    let name = image["name"].as_str().unwrap_or_default();
    let size: u32 = image["diskSizeGb"].as_str().and_then(|size| size.parse().ok()).unwrap_or(0);
    if size > plan.disk_gb {
        let message = format!("{name} needs a disk of {size} GB, and the machine has {}", plan.disk_gb);
        return Finding::bad(WHAT, message, "give compute.gce.disk_gb more");
    }
    if let Some(why) = possible::unknown_to_driver(plan, name) {
        return Finding::bad(WHAT, why, "name an older one in compute.gce.image_family or boot_image");
    }
    let which = if plan.boot_image.is_some() { of_project } else { format!("{name}, the newest {of_project}") };
    Finding::good(WHAT, which)
}
