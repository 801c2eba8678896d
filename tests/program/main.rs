//! The program as a whole, in one test program: each of its own would be linked with all of ftctl, and would run alone.

mod azure;
mod bad_input;
#[path = "../common/mod.rs"]
mod common;
mod crash_points;
mod devcloud;
mod docker;
mod engines;
mod entra;
mod front;
mod imports;
mod logs;
mod mishaps;
mod startup;
