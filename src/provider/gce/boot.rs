//! The boot image that a family means today.

use super::{
    super::ProviderError,
    client::{Call, Client},
    possible,
};
use crate::job::{finding::Finding, gce::GcePlan};

const WHAT: &str = "boot image";

/// Whether a machine of this plan can begin with it. Changes nothing.
pub async fn check(client: &Client, plan: &GcePlan) -> Finding {
    let family = format!("{} of {}", plan.image_family, plan.image_project);
    // Below another project than one's own.
    let path = format!("../{}/global/images/family/{}", plan.image_project, plan.image_family);
    let image = match client.call(Call::get(path)).await {
        Ok(image) => image,
        Err(refusal) if refusal.is_absent() => {
            return Finding::bad(
                WHAT,
                format!("there is no {family}"),
                "name another in compute.gce.image_family and image_project",
            );
        }
        Err(refusal) => {
            let error = ProviderError::from(refusal);
            return Finding::notice(WHAT, format!("{family}: not known: {}", error.message), error.fix.unwrap_or_default());
        }
    };
    let name = image["name"].as_str().unwrap_or_default();
    let size: u32 = image["diskSizeGb"].as_str().and_then(|size| size.parse().ok()).unwrap_or(0);
    if size > plan.disk_gb {
        let message = format!("{name} needs a disk of {size} GB, and the machine has {}", plan.disk_gb);
        return Finding::bad(WHAT, message, "give compute.gce.disk_gb more");
    }
    if let Some(why) = possible::unknown_to_driver(plan, name) {
        return Finding::bad(WHAT, why, "name an older family in compute.gce.image_family");
    }
    Finding::good(WHAT, format!("{name}, the newest {family}"))
}
