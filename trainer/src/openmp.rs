//! How OpenMP's threads wait for work, which libtorch's kernels start.

/// The variable to add to the environment of a process that loads libtorch: its threads sleep while they wait. By default they spin
/// for milliseconds after every kernel, which on two cores that something else uses too (a browser, a build) makes a training step
/// five to nine times slower, for all involved. `None` where the environment already says how they wait.
///
/// The library reads the variable while it is loaded, before `main`: a trainer that is started without it starts itself again,
/// which costs 0.3 s.
pub fn policy() -> Option<(&'static str, &'static str)> {
    let is_settled = ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"].iter().any(|name| std::env::var_os(name).is_some());
    (!is_settled).then_some(("OMP_WAIT_POLICY", "passive"))
}
