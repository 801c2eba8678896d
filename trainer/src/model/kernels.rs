//! Whose kernels compute on the CPU: this crate's, or libtorch's, as on a GPU. Like libtorch's own modes (`no_grad`) it is a property of the thread
//! that calls them, set around a whole pass; every kernel asks once, where it looks at the dtype and the device of its input.

use std::cell::Cell;

use crate::config::Engine;

thread_local! {
    static ENGINE: Cell<Engine> = const { Cell::new(Engine::Own) };
}

/// Calls `work` with the kernels of `engine`.
pub(super) fn of<T>(engine: Engine, work: impl FnOnce() -> T) -> T {
    let before = ENGINE.replace(engine);
    let result = work();
    ENGINE.set(before);
    result
}

/// Whether tensors in main memory go to this crate's kernels, where it has one for their dtype.
pub(crate) fn are_own() -> bool {
    ENGINE.get() == Engine::Own
}
