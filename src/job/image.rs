//! The container image that a job wants, as typed in a job file or in settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the container image is made. Every key goes into the image's tag, `network` excepted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ImageSpec {
    /// Build of libtorch; absent: `cpu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<LibtorchVariant>,
    /// Base image of the job's image; absent: `docker.io/library/debian:bookworm-slim`. It needs glibc and libstdc++, and a shell
    /// for `ftctl ssh`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Image for compiling, with Rust, a C++ compiler and Python 3; absent: `docker.io/library/rust:1.95-bookworm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builder: Option<String>,
    /// Directory with the programs `ftctl` and `ft-trainer`, put into the image instead of compiling them in a container: minutes
    /// faster. Needs BuildKit, and a base image whose C library is not older than the one they were linked with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prebuilt: Option<String>,
    /// File with more certificates (PEM) to trust, while the image is built and in the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<String>,
    /// Python package index; absent: that of pip in the builder image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pip_index: Option<String>,
    /// Index that has `torch` for the variant; absent: `https://download.pytorch.org/whl/VARIANT`. `pypi` takes it from the Python
    /// package index, which has the build for CUDA 13.0: right for `cu130`, and larger than `cpu` needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub torch_index: Option<String>,
    /// Index of crates, like `sparse+https://host/index/`; absent: crates.io.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cargo_index: Option<String>,
    /// Network for the build steps, such as `host`; absent: the engine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
}

/// A build of libtorch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LibtorchVariant {
    /// For machines without a GPU.
    #[default]
    Cpu,
    /// CUDA 12.6: GPUs from Maxwell to Hopper, the V100 among them. The Python package index does not have it.
    Cu126,
    /// CUDA 13.0: GPUs from Turing on, Blackwell among them.
    Cu130,
}

impl LibtorchVariant {
    pub fn name(self) -> &'static str {
        match self {
            LibtorchVariant::Cpu => "cpu",
            LibtorchVariant::Cu126 => "cu126",
            LibtorchVariant::Cu130 => "cu130",
        }
    }

    /// Version of the CUDA libraries that come with it.
    pub fn cuda(self) -> Option<&'static str> {
        match self {
            LibtorchVariant::Cpu => None,
            LibtorchVariant::Cu126 => Some("12.6"),
            LibtorchVariant::Cu130 => Some("13.0"),
        }
    }
}
