//! Which device a run computes on, and how: decided and said before anything is loaded.
//!
//! The program is linked with libtorch's CPU part alone, and loads the CUDA part of the libtorch beside it when a GPU is asked for.
//! One build therefore starts on machines without CUDA's libraries, and uses a GPU where libtorch's CUDA build lies in the place of
//! the CPU build.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::time::{Duration, Instant};

use tch::{Cuda, Device, Kind, Tensor};

use crate::aten;
use crate::cpu::engine;
use crate::error::Failure;
use crate::model::layers::linear::product;
use crate::settings::{DeviceChoice, Engine, Offload, TrainSettings};

/// libtorch's CUDA part, found where the program looks for libtorch.
const CUDA_PART: &str = if cfg!(target_os = "macos") { "libtorch_cuda.dylib" } else { "libtorch_cuda.so" };
/// The library of NVIDIA's driver.
const DRIVER: &str = "libcuda.so.1";
/// cuBLAS gives the same bits each time only with a fixed workspace.
const CUBLAS_WORKSPACE: (&str, &str) = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8");

/// A device that can be computed on, and why it is this one.
#[derive(Debug, Clone)]
pub struct Chosen {
    pub device: Device,
    pub reason: String,
}

/// The device of `choice`. A GPU that is asked for and cannot be used is bad input.
pub fn choose(choice: DeviceChoice) -> Result<Chosen, Failure> {
    choose_at(choice, 0)
}

/// [`choose`]; of several GPUs that with this number.
fn choose_at(choice: DeviceChoice, index: usize) -> Result<Chosen, Failure> {
    let on_gpu = |reason: &str| Chosen { device: Device::Cuda(index), reason: reason.to_owned() };
    let without = |reason: String| Chosen { device: Device::Cpu, reason };
    match choice {
        DeviceChoice::Cpu => Ok(without("device = \"cpu\"".to_owned())),
        DeviceChoice::Auto => Ok(gpu(index).map_or_else(without, |()| on_gpu("device = \"auto\" found it"))),
        DeviceChoice::Cuda => match gpu(index) {
            Ok(()) => Ok(on_gpu("device = \"cuda\"")),
            Err(reason) => Err(Failure::input(format!(
                "device = \"cuda\" is not available: {reason}; on a machine with an NVIDIA GPU install its driver and build the trainer with \
                 FTCTL_LIBTORCH=cuda, or set device = \"cpu\""
            ))),
        },
    }
}

/// Whether a run of `choice` computes on a GPU; one that leaves it open, if it began here.
pub fn is_gpu(choice: DeviceChoice) -> bool {
    choice == DeviceChoice::Cuda || choice == DeviceChoice::Auto && gpu(0).is_ok()
}

/// Sets what libraries read from the environment. It is the first thing that a process of the trainer does: later there are threads
/// that read there.
pub fn set_environment(settings: &TrainSettings) {
    if settings.deterministic && std::env::var_os(CUBLAS_WORKSPACE.0).is_none() {
        // SAFETY: the process has no other thread yet.
        unsafe { std::env::set_var(CUBLAS_WORKSPACE.0, CUBLAS_WORKSPACE.1) };
    }
}

/// [`choose`] for training, for the process with the number `local` of those on this machine: with all that `settings` ask of
/// libtorch, and nothing that it cannot do.
pub fn prepare(settings: &TrainSettings, local: usize) -> Result<Chosen, Failure> {
    let chosen = choose_at(settings.device, local)?;
    if away(chosen.device, settings) != Offload::None && settings.lora.is_some() {
        let what = "train.offload does not go together with train.lora on a GPU and with libtorch's kernels";
        return Err(Failure::input(format!("{what}; remove one of them")));
    }
    if chosen.device.is_cuda() {
        aten::set_precision(settings.tf32, settings.deterministic);
    }
    Ok(chosen)
}

/// Whether libtorch's kernels compute.
pub fn uses_libtorch(device: Device, engine: Engine) -> bool {
    device.is_cuda() || engine == Engine::Libtorch
}

/// The tensors that stay in main memory, so that the device has those that one block needs. The CPU's own kernels keep nothing
/// away: that memory is theirs.
pub fn away(device: Device, settings: &TrainSettings) -> Offload {
    if uses_libtorch(device, settings.engine) { settings.offload } else { Offload::None }
}

/// Most memory of a GPU that this process's tensors took at once, in bytes.
pub fn peak_memory(device: Device) -> Option<u64> {
    if let Device::Cuda(index) = device { Some(aten::peak_memory(index)) } else { None }
}

/// Free memory of a GPU, in bytes.
pub fn free_memory(device: Device) -> Option<u64> {
    if let Device::Cuda(index) = device { Some(aten::free_memory(index)) } else { None }
}

/// Keeps pages of main memory where they are until the process ends, so that the GPU copies from and to them by itself.
pub fn lock(memory: &mut [u8]) -> Result<(), Failure> {
    type Register = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
    // SAFETY: libtorch's CUDA part has brought CUDA's runtime, whose function of this name has this form.
    let register = unsafe {
        std::mem::transmute::<*mut c_void, Option<Register>>(libc::dlsym(libc::RTLD_DEFAULT, c"cudaHostRegister".as_ptr()))
    };
    // SAFETY: these are pages of this process.
    let code = register.map(|register| unsafe { register(memory.as_mut_ptr().cast(), memory.len(), 0) });
    let why = match code {
        Some(0) => return Ok(()),
        Some(2) => "out of memory".to_owned(),
        Some(code) => format!("CUDA's error {code}"),
        None => "CUDA's runtime cannot be found".to_owned(),
    };
    Err(Failure::other(format!(
        "cannot lock {} MiB of main memory for copies from and to the GPU: {why}; take a machine with more main memory, lower \
         train.micro_batch, or do without train.offload and train.recompute = \"host\"",
        memory.len() >> 20
    )))
}

/// From here on a product is measured once.
const LONG: Duration = Duration::from_millis(200);

/// FLOP per second of square products in `kind` on `device`, on a CPU those of `engine`: the best of some that take milliseconds
/// each, short enough to find a moment in which all threads run even on a machine that does other things.
pub fn measured_rate(device: Device, kind: Kind, engine: Engine) -> f64 {
    let (size, times) = if device.is_cuda() { (4096, 10) } else { (768, 20) };
    let ones = Tensor::ones([size, size], (kind, device));
    let seconds = || {
        let started = Instant::now();
        let _ = engine::with(engine, || product(&ones, &ones));
        if let Device::Cuda(index) = device {
            Cuda::synchronize(index as i64);
        }
        started.elapsed().as_secs_f64()
    };
    let first = seconds();
    // Where a processor multiplies 16-bit numbers one by one, one product says it all.
    let more = if first < LONG.as_secs_f64() { times } else { 0 };
    2.0 * (size as f64).powi(3) / (0..more).map(|_| seconds()).fold(first, f64::min)
}

/// Makes libtorch see a GPU, by its number, and compute all digits there until it is told otherwise, or says why it cannot.
/// libtorch asks once for its CUDA part: this comes before everything else.
fn gpu(index: usize) -> Result<(), String> {
    load(DRIVER).map_err(|_| format!("this machine has no NVIDIA driver ({DRIVER})"))?;
    load(CUDA_PART)
        .map_err(|error| format!("the libtorch of this program is its CPU build, or parts of CUDA are missing ({error})"))?;
    if !Cuda::is_available() || Cuda::device_count() < 1 {
        return Err(
            "libtorch finds no GPU (CUDA_VISIBLE_DEVICES may hide it, or the driver is older than libtorch's CUDA)".to_owned()
        );
    }
    let there = Cuda::device_count();
    if index >= there as usize {
        return Err(format!("each process has a GPU of its own, this one number {index}, and libtorch finds {there}"));
    }
    let ones = |device| Tensor::f_ones([1], (Kind::Float, device))?.f_add_scalar(1.0)?.f_to_device(Device::Cpu);
    ones(Device::Cuda(index)).map(drop).map_err(|error| {
        let error = error.to_string();
        format!("libtorch cannot compute on the GPU: {}", error.lines().next().unwrap_or_default())
    })?;
    aten::set_precision(false, false);
    Ok(())
}

/// Loads a library for the rest of the process.
fn load(name: &str) -> Result<(), String> {
    let name = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: these libraries are made to be loaded at any time; they stay until the process ends.
    if !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null() {
        return Ok(());
    }
    // SAFETY: the text ends with a zero and stays until this thread's next call.
    let error = unsafe { libc::dlerror().as_ref().map(|error| CStr::from_ptr(error).to_string_lossy().into_owned()) };
    Err(error.unwrap_or_else(|| "no reason given".to_owned()))
}
