//! The nouns: what a job is, as pure data. Every other module may read them; they read nothing but `std`, serde and the
//! trainer's configuration types.

pub mod address;
pub mod azureml;
pub mod check;
pub mod clock;
pub mod compute;
pub mod difference;
pub mod digest;
pub mod docker;
pub mod document;
pub mod environment;
pub mod event;
pub mod finding;
pub mod foreign;
pub mod gce;
pub mod hub;
pub mod id;
pub mod image;
pub mod meeting;
pub mod model;
pub mod order;
pub mod plan;
pub mod printable;
mod processes;
pub mod record;
pub mod report;
pub mod spec;
pub mod state;
pub mod tracking;
pub mod units;
pub mod wording;
pub mod yaml;
