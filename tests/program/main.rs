//! The program as a whole, in one test program: each of its own would be linked with all of ftctl, and would run alone. Those that
//! make images with an engine have theirs (`tests/devcloud.rs`, `tests/image.rs`): others look for what is left there.

mod azure;
mod bad_input;
mod before;
#[path = "../common/browser.rs"]
mod browser;
mod ci;
#[path = "../common/mod.rs"]
mod common;
mod completion;
mod crash_points;
mod docker;
mod ends;
mod engines;
mod entra;
mod front;
mod hub;
mod imports;
mod keys;
mod logs;
mod material;
mod mishaps;
mod notify;
mod plan;
mod report;
mod resume;
mod startup;
#[path = "../common/terminal.rs"]
mod terminal;
mod waiting;
