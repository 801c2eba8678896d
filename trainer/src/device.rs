//! Which device a run computes on, and how: decided and said before anything is loaded.
//!
//! The program is linked with libtorch's CPU part alone, and loads the CUDA part of the libtorch beside it when a GPU is asked for.
//! One build therefore starts on machines without CUDA's libraries, and uses a GPU where libtorch's CUDA build lies in the place of
//! the CPU build.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::time::{Duration, Instant};
use std::{env, fs};

use tch::{Cuda, Device, Kind, Tensor};

use crate::aten;
use crate::cpu::engine;
use crate::error::Failure;
use crate::model::layers::linear::product;
use crate::settings::{DeviceChoice, Engine, Offload, TrainSettings};
use crate::world::interface;

/// libtorch's CUDA part, found where the program looks for libtorch.
const CUDA_PART: &str = if cfg!(target_os = "macos") { "libtorch_cuda.dylib" } else { "libtorch_cuda.so" };
/// The library of NVIDIA's driver.
const DRIVER: &str = "libcuda.so.1";
/// cuBLAS gives the same bits each time only with a fixed workspace.
const CUBLAS_WORKSPACE: (&str, &str) = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
/// The interfaces by which NCCL reaches other machines; behind `=`, the whole name of one.
const NCCL_INTERFACE: &str = "NCCL_SOCKET_IFNAME";

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
    for (name, value) in variables(settings, |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned())) {
        // SAFETY: the process has no other thread yet.
        unsafe { env::set_var(name, value) };
    }
}

/// The variables that are added to an environment. What it has stays, if empty too.
fn variables(settings: &TrainSettings, variable: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
    let workspace = || settings.deterministic.then(|| CUBLAS_WORKSPACE.1.to_owned());
    // Left to itself NCCL may take the bridge of a container engine, which other machines do not reach.
    let interface = || {
        let is_free = settings.device != DeviceChoice::Cpu && !nccl_is_told(&variable);
        is_free.then(|| interface(&variable)).flatten().map(|name| format!("={name}"))
    };
    let found: [(_, &dyn Fn() -> _); 2] = [(CUBLAS_WORKSPACE.0, &workspace), (NCCL_INTERFACE, &interface)];
    found.into_iter().filter(|(name, _)| variable(name).is_none()).filter_map(|(name, value)| Some((name, value()?))).collect()
}

/// Whether a file that NCCL reads names interfaces. The environment would count more than the file.
fn nccl_is_told(variable: impl Fn(&str) -> Option<String>) -> bool {
    let own = variable("NCCL_CONF_FILE").or_else(|| Some(format!("{}/.nccl.conf", variable("HOME")?)));
    let mut files = own.into_iter().chain(["/etc/nccl.conf".to_owned()]).filter_map(|path| fs::read_to_string(path).ok());
    files.any(|text| text.lines().any(|line| line.trim_start().starts_with(NCCL_INTERFACE)))
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

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [(&str, &str); 5] =
        [("WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];

    fn added(device: DeviceChoice, own: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        variables(&TrainSettings { device, ..TrainSettings::default() }, |name| {
            own.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nccl_is_told_the_interface_to_other_machines_unless_it_is_already() {
        let loopback = if cfg!(target_os = "macos") { "=lo0" } else { "=lo" };
        let interfaces = |device, more: &[(&str, &str)]| added(device, &[&NODES[..], more].concat());
        assert_eq!(interfaces(DeviceChoice::Auto, &[]), [(NCCL_INTERFACE, loopback.to_owned())]);
        assert_eq!(interfaces(DeviceChoice::Cpu, &[]), []);
        for set in ["^docker0", ""] {
            assert_eq!(interfaces(DeviceChoice::Cuda, &[(NCCL_INTERFACE, set)]), []);
        }
        let home = tempfile::tempdir().unwrap();
        let place = |text| fs::write(home.path().join(".nccl.conf"), text).unwrap();
        let of_file = || interfaces(DeviceChoice::Cuda, &[("HOME", home.path().to_str().unwrap())]).len();
        place("NCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME=ib0\n");
        assert_eq!(of_file(), 0);
        place("NCCL_DEBUG=INFO\n# NCCL_SOCKET_IFNAME=ib0\n");
        assert_eq!(of_file(), 1);
    }

    #[test]
    fn one_machine_needs_no_interface() {
        assert_eq!(added(DeviceChoice::Cuda, &[NODES[0], NODES[1], ("LOCAL_WORLD_SIZE", "2"), NODES[3], NODES[4]]), []);
        assert_eq!(added(DeviceChoice::Cuda, &[]), []);
    }

    #[test]
    fn cublas_has_a_fixed_workspace_where_bits_are_to_be_the_same() {
        let settings = TrainSettings { deterministic: true, ..TrainSettings::default() };
        let (name, value) = CUBLAS_WORKSPACE;
        assert_eq!(variables(&settings, |_| None), [(name, value.to_owned())]);
        assert_eq!(variables(&settings, |asked| (asked == name).then(|| ":16:8".to_owned())), []);
    }
}
