//! `ftctl`: from one job file to a fine-tuned language model, and nothing left running.
//!
//! The modules in the order of a job's life: [`job`] holds the nouns, [`provider`] the places where jobs run, [`store`] the shared
//! truth.

pub mod agent;
pub mod catalogue;
pub mod cli;
pub mod devcloud;
pub mod docker;
pub mod exit;
pub mod hub;
pub mod identity;
pub mod image;
pub mod job;
pub mod lifecycle;
pub mod output;
pub mod provider;
pub mod settings;
pub mod store;
pub mod transit;
