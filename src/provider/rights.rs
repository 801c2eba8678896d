//! All that a plan lets its machine reach, for a user who takes the job over.

/// `None` is nothing, or the backend's own default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    pub user: Option<String>,
    pub mounts: Vec<String>,
    pub network: Option<String>,
    pub service_account: Option<String>,
}

impl Rights {
    /// A name and a value for each line; the same names for every backend, so that nothing is overlooked.
    pub fn rows(self) -> [(&'static str, String); 4] {
        let or = |text: Option<String>, absent: &str| text.unwrap_or_else(|| absent.to_owned());
        [
            ("user", or(self.user, "one without rights")),
            ("mounts", or(Some(self.mounts.join(", ")).filter(|mounts| !mounts.is_empty()), "none")),
            ("network", or(self.network, "the backend's own")),
            ("service account", or(self.service_account, "none of the plan's")),
        ]
    }
}
