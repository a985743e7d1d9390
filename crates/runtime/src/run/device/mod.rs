//! From the name of a device to a backend, and from there to a loaded model.
//!
//! A device that was named is used or is an error. `auto` prefers a GPU, and continues with
//! the next best device, the processor in the end, with a warning where one was there. What each
//! device does with a plan is the matter of its backend.

mod choice;
mod list;
mod machine;
mod parallel;

pub use choice::{DeviceChoice, DeviceList};
pub use list::{DeviceInfo, Devices, devices, devices_in_hardware};
pub use machine::{CacheInfo, Cores, HugePagesInfo, Machine, Memory, NodeInfo, Tiers, machine};

use super::{DeviceLayers, LoadOptions, Model};
use crate::Error;
use realizar_backends::cpu::{Affinity, CpuBackend};
use realizar_backends::{Backend, MemoryUse};
use std::path::Path;

/// How devices are used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Threads of the processor; as many as there are physical cores when `None`.
    pub n_threads: Option<usize>,
    /// Where those threads may run.
    pub affinity: Affinity,
    /// Instruction set of the processor's kernels; the best one when `None`.
    pub cpu_tier: Option<String>,
    /// Use none of the features that a GPU may lack: subgroups, half precision
    /// and packed dot products. [`load`] refuses it where there is no GPU.
    pub gpu_plain: bool,
    /// Let CUDA launches start before the one in front of them has ended. It is for cards of compute capability 9.0, and
    /// [`load`] refuses it where no device is reached by CUDA.
    pub cuda_dependent_launch: bool,
    /// Multiply the prefill rows by CUDA's instructions of groups of warps. It is for cards of compute capability 9.0, and
    /// [`load`] refuses it where no device is reached by CUDA.
    pub cuda_wgmma: bool,
    /// Round decode rows to BF16 on CUDA devices where weights have integer levels, instead of to 8-bit integers. [`load`]
    /// refuses it where no device is reached by CUDA.
    pub cuda_bf16_decode: bool,
    /// Cards that divide every layer among them: those of the list, or the first ones. [`load`] refuses other devices.
    pub tensor_parallel: Option<usize>,
}

/// A model on its device or devices.
#[derive(Debug)]
pub struct Loaded {
    /// The model.
    pub model: Model,
    /// Threads of the processor, if it runs any of the model.
    pub n_threads: Option<usize>,
}

/// Opens a device; `auto` is the one that it tries first, [`Devices::auto`].
///
/// # Errors
/// If the device is not there, cannot be opened or is not part of this build, or
/// an option has a value that cannot be used. Only [`load`] falls back on another
/// device.
pub fn open(choice: &DeviceChoice, options: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    let cpu = cpu(options)?;
    match choice {
        DeviceChoice::Auto => open(&list::auto(), options),
        DeviceChoice::Cpu => Ok(Box::new(cpu)),
        DeviceChoice::Wgpu(index) => open_wgpu(*index, options),
        DeviceChoice::Cuda(index) => open_cuda(*index, options),
        DeviceChoice::CudaInterpreter => open_interpreter(options),
    }
}

/// Loads the model at `path` onto the devices of a list; with `gpu_layers`, the last layers of
/// that number and the head onto the device of the list, a GPU, and the rest onto the processor.
///
/// # Errors
/// As [`open`] and [`Model::load_onto`]. A GPU that `auto` chose and that cannot run
/// or hold the model is not an error: the next best device takes the model, a GPU by wgpu after
/// one by CUDA, and the processor in the end. There is no such way out with `gpu_layers`. An option of the GPU is an error where the
/// processor is the only choice, and `gpu_layers` where the list has several devices.
pub fn load(
    path: &Path,
    list: &DeviceList,
    gpu_layers: Option<usize>,
    options: &DeviceOptions,
    load_options: &LoadOptions,
) -> Result<Loaded, Error> {
    let load = |list: &DeviceList, options: &DeviceOptions| {
        let opened = Opened::new(list, gpu_layers, options)?;
        let model = opened.with(|devices| Model::load_onto(path, devices, load_options))?;
        // A device that is left without a layer is not used.
        let parts = &model.placement().parts;
        let is_on_cpu = parts.iter().any(|part| part.backend == opened.cpu.name());
        Ok(Loaded { n_threads: is_on_cpu.then(|| opened.cpu.n_threads()), model })
    };
    if !may_choose(list, gpu_layers, options) {
        return load(list, options);
    }
    list::passed_over().iter().for_each(|reason| tracing::warn!("{reason}"));
    next_best(&choices(list, options)?, |choice| load(&choice.into(), &options_on(choice, options)))
}

impl Model {
    /// Loads the model at `path`, a GGUF file or a Hugging Face directory, onto the device that does best, with
    /// the default options.
    ///
    /// # Errors
    /// As [`load`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let (list, options) = (DeviceChoice::Auto.into(), DeviceOptions::default());
        let loaded = load(path.as_ref(), &list, None, &options, &LoadOptions::default())?;
        Ok(loaded.model)
    }
}

/// Whether the whole model is for the device that does best.
fn may_choose(list: &DeviceList, gpu_layers: Option<usize>, options: &DeviceOptions) -> bool {
    list.whole() == Some(DeviceChoice::Auto)
        && gpu_layers.is_none()
        && options.tensor_parallel.is_none()
}

/// The devices that `auto` tries, in their order.
fn choices(list: &DeviceList, options: &DeviceOptions) -> Result<Vec<DeviceChoice>, Error> {
    let choices = list::choices();
    match choices[..] {
        [DeviceChoice::Cpu] if options.gpu_plain => Err(without_gpu("gpu-plain", list)),
        _ => check_cuda(choices.iter().copied(), options).map(|()| choices),
    }
}

/// That one of the devices is reached by CUDA, where an option is for these.
fn check_cuda(
    mut devices: impl Iterator<Item = DeviceChoice>,
    options: &DeviceOptions,
) -> Result<(), Error> {
    let asked = match options {
        DeviceOptions { cuda_dependent_launch: true, .. } => "cuda-dependent-launch",
        DeviceOptions { cuda_wgmma: true, .. } => "cuda-wgmma",
        DeviceOptions { cuda_bf16_decode: true, .. } => "cuda-bf16-decode",
        _ => return Ok(()),
    };
    if devices.any(is_cuda) {
        return Ok(());
    }
    let reason = "requires an NVIDIA GPU used with CUDA; select one with --device cuda";
    Err(Error::Option { option: asked, reason: reason.to_owned() })
}

fn is_cuda(device: DeviceChoice) -> bool {
    matches!(device, DeviceChoice::Cuda(_) | DeviceChoice::CudaInterpreter)
}

/// The options for one of these devices: those of a GPU are not asked of the processor that takes its place.
fn options_on(choice: DeviceChoice, options: &DeviceOptions) -> DeviceOptions {
    DeviceOptions {
        gpu_plain: options.gpu_plain && choice != DeviceChoice::Cpu,
        cuda_dependent_launch: options.cuda_dependent_launch && is_cuda(choice),
        cuda_wgmma: options.cuda_wgmma && is_cuda(choice),
        cuda_bf16_decode: options.cuda_bf16_decode && is_cuda(choice),
        ..options.clone()
    }
}

/// Tries devices in their order, as long as the one before cannot be used or has no room.
fn next_best<T>(
    choices: &[DeviceChoice],
    mut attempt: impl FnMut(DeviceChoice) -> Result<T, Error>,
) -> Result<T, Error> {
    let (&last, others) = choices.split_last().expect("there is always the processor");
    for (&choice, next) in others.iter().zip(&choices[1..]) {
        match attempt(choice) {
            Err(error) if is_of_device(&error) => {
                tracing::warn!("loading the model on {next} instead of {choice}: {error}");
            }
            other => return other,
        }
    }
    attempt(last)
}

/// The memory that [`load`] would take for the same. Where `auto` chose a GPU, it is that of the
/// GPU, and the processor's where the GPU cannot be opened.
///
/// # Errors
/// As [`open`] and [`Model::memory_needed`].
pub fn memory_needed(
    path: &Path,
    list: &DeviceList,
    gpu_layers: Option<usize>,
    options: &DeviceOptions,
    load_options: &LoadOptions,
) -> Result<MemoryUse, Error> {
    let needed = |list: &DeviceList, options: &DeviceOptions| {
        let opened = Opened::new(list, gpu_layers, options)?;
        opened.with(|devices| Model::memory_needed(path, devices, load_options))
    };
    if !may_choose(list, gpu_layers, options) {
        return needed(list, options);
    }
    next_best(&choices(list, options)?, |choice| {
        needed(&choice.into(), &options_on(choice, options))
    })
}

/// A device of a list.
struct OpenedDevice {
    /// `None` is the processor.
    gpu: Option<Box<dyn Backend>>,
    /// The maximum number of layers that it takes.
    n_layers: Option<usize>,
}

/// The devices of a list.
struct Opened {
    cpu: CpuBackend,
    /// In the order of the layers.
    devices: Vec<OpenedDevice>,
}

impl Opened {
    fn new(
        list: &DeviceList,
        gpu_layers: Option<usize>,
        options: &DeviceOptions,
    ) -> Result<Self, Error> {
        // Checked also where the processor has nothing to do.
        let cpu = cpu(options)?;
        if let Some(n_ranks) = options.tensor_parallel {
            let gpu = Some(parallel::open(list, gpu_layers, n_ranks, options)?);
            let devices = vec![OpenedDevice { gpu, n_layers: None }];
            return Ok(Self { cpu, devices });
        }
        let listed = match (list.whole(), gpu_layers) {
            (None, None) => list.devices().to_vec(),
            (None, Some(_)) => {
                let reason = "--device already assigns layers to devices".to_owned();
                return Err(Error::Option { option: "gpu-layers", reason });
            }
            (Some(choice), _) => {
                let device = if choice == DeviceChoice::Auto { list::auto() } else { choice };
                if device == DeviceChoice::Cpu && gpu_layers.is_some() {
                    return Err(without_gpu("gpu-layers", list));
                }
                match gpu_layers {
                    None => vec![(device, None)],
                    Some(_) => vec![(DeviceChoice::Cpu, None), (device, gpu_layers)],
                }
            }
        };
        if options.gpu_plain && listed.iter().all(|(device, _)| *device == DeviceChoice::Cpu) {
            return Err(without_gpu("gpu-plain", list));
        }
        check_cuda(listed.iter().map(|(device, _)| *device), options)?;
        let mut devices = Vec::new();
        for (device, n_layers) in listed {
            let gpu = match device {
                DeviceChoice::Cpu => None,
                device => Some(open(&device, options)?),
            };
            devices.push(OpenedDevice { gpu, n_layers });
        }
        Ok(Self { cpu, devices })
    }

    fn with<T>(&self, work: impl FnOnce(&[DeviceLayers<'_>]) -> T) -> T {
        let devices = self.devices.iter().map(|OpenedDevice { gpu, n_layers }| {
            let backend = gpu.as_deref().unwrap_or(&self.cpu);
            DeviceLayers { backend, n_layers: *n_layers }
        });
        work(&devices.collect::<Vec<_>>())
    }
}

/// That an option needs a GPU and the list is the processor.
fn without_gpu(option: &'static str, list: &DeviceList) -> Error {
    let reason = match list.whole() {
        Some(DeviceChoice::Auto) => "no hardware GPU was found",
        _ => "the device is the CPU; select a GPU with --device",
    };
    Error::Option { option, reason: reason.to_owned() }
}

fn cpu(options: &DeviceOptions) -> Result<CpuBackend, Error> {
    let cpu = CpuBackend::new(options.n_threads, options.cpu_tier.as_deref())?;
    Ok(cpu.with_affinity(options.affinity))
}

#[cfg(feature = "wgpu")]
fn open_wgpu(index: Option<usize>, options: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    use realizar_kernels_wgpu::GpuOptions;
    let gpu = if options.gpu_plain { GpuOptions::PLAIN } else { GpuOptions::default() };
    Ok(Box::new(realizar_backends::wgpu::WgpuBackend::open(index, gpu)?))
}

#[cfg(not(feature = "wgpu"))]
fn open_wgpu(_: Option<usize>, _: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    Err(refused(format!("{}; use `cpu`", list::NO_WGPU)))
}

#[cfg(feature = "cuda")]
fn open_cuda(index: Option<usize>, options: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    Ok(Box::new(realizar_backends::cuda::CudaBackend::open(index, of_cuda(options))?))
}

/// The options of cards that are reached by CUDA.
#[cfg(feature = "cuda")]
fn of_cuda(options: &DeviceOptions) -> realizar_backends::cuda::CudaOptions {
    realizar_backends::cuda::CudaOptions {
        dependent_launch: options.cuda_dependent_launch,
        wgmma: options.cuda_wgmma,
        bf16_decode: options.cuda_bf16_decode,
    }
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(_: Option<usize>, _: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    Err(refused(format!("{}; `wgpu` uses NVIDIA GPUs through Vulkan", list::NO_CUDA)))
}

#[cfg(feature = "cuda-interpreter")]
fn open_interpreter(options: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    let mut backend = realizar_backends::cuda::CudaBackend::new(interpreter(options))?;
    if options.cuda_bf16_decode {
        backend = backend.with_bf16_decode();
    }
    Ok(Box::new(if options.cuda_wgmma { backend.with_wgmma()? } else { backend }))
}

#[cfg(feature = "cuda-interpreter")]
fn interpreter(options: &DeviceOptions) -> realizar_kernels_cuda::Interpreter {
    use realizar_kernels_cuda::Interpreter;
    let device = Interpreter::new(realizar_ptx::Checks::FAST, usize::MAX);
    if options.cuda_dependent_launch { device.with_early_launches() } else { device }
}

#[cfg(not(feature = "cuda-interpreter"))]
fn open_interpreter(_: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    let reason = "the interpreter is for tests and is not part of this build (crate feature \
                  `cuda-interpreter`)";
    Err(refused(reason.to_owned()))
}

fn refused(reason: String) -> Error {
    Error::Option { option: "device", reason }
}

/// Whether another device may do better: the model is not at fault.
fn is_of_device(error: &Error) -> bool {
    use realizar_backends::Error::{Device, Refused};
    matches!(error, Error::Backend(Refused { .. } | Device { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_backends::{DeviceFault, Error as BackendError};
    use realizar_model::Error as LoadError;

    #[test]
    fn the_processor_opens_with_its_options() {
        let options = DeviceOptions { n_threads: Some(1), ..DeviceOptions::default() };
        let cpu = open(&DeviceChoice::Cpu, &options).expect("the processor");
        assert!(cpu.name().starts_with("cpu ("), "{}", cpu.name());
        // A wrong option of the processor is an error on every device.
        let options = DeviceOptions { cpu_tier: Some("z80".to_owned()), ..options };
        for choice in [DeviceChoice::Auto, DeviceChoice::Cpu, DeviceChoice::Wgpu(None)] {
            let error = open(&choice, &options).expect_err("z80").to_string();
            assert!(error.starts_with("cpu-tier: `z80`"), "{choice}: {error}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_named() {
        let options = DeviceOptions::default();
        let error = open(&DeviceChoice::Cuda(Some(999)), &options).expect_err("999").to_string();
        let expected = if cfg!(feature = "cuda") { "CUDA d" } else { "CUDA is not part" };
        assert!(error.contains(expected), "{error}");
        let error = open(&DeviceChoice::Wgpu(Some(999)), &options).expect_err("999").to_string();
        let expected = if cfg!(feature = "wgpu") { "999" } else { "wgpu is not part" };
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn options_of_a_gpu_need_a_gpu() {
        let path = Path::new("no-such-model");
        let plain = DeviceOptions { gpu_plain: true, ..DeviceOptions::default() };
        let cases = [
            ("gpu-layers", Some(1), DeviceOptions::default()),
            ("gpu-plain", None, plain.clone()),
            ("gpu-layers", Some(1), plain),
        ];
        for (option, gpu_layers, options) in cases {
            let load = |choice: DeviceChoice| {
                load(path, &choice.into(), gpu_layers, &options, &LoadOptions::default())
            };
            let error = load(DeviceChoice::Cpu).expect_err("no GPU").to_string();
            assert_eq!(
                error,
                format!("{option}: the device is the CPU; select a GPU with --device")
            );
            if option == "gpu-plain" {
                let list = "cpu=1".parse().expect("a list");
                let load = super::load(path, &list, None, &options, &LoadOptions::default());
                let error = load.expect_err("no GPU").to_string();
                assert!(error.starts_with("gpu-plain: the device is the CPU"), "{error}");
            }
            if devices().auto == "cpu" {
                let error = load(DeviceChoice::Auto).expect_err("no GPU").to_string();
                assert_eq!(error, format!("{option}: no hardware GPU was found"));
            }
        }
        // On a GPU only the model is at fault.
        if devices().auto != "cpu" {
            let options = DeviceOptions { gpu_plain: true, ..DeviceOptions::default() };
            let list = DeviceChoice::Auto.into();
            let load = load(path, &list, None, &options, &LoadOptions::default());
            let error = load.expect_err("no model").to_string();
            assert!(error.contains("no-such-model"), "{error}");
        }
    }

    #[test]
    fn options_of_cuda_need_a_device_of_it() {
        let none = DeviceOptions::default();
        for (name, options) in [
            (
                "cuda-dependent-launch",
                DeviceOptions { cuda_dependent_launch: true, ..none.clone() },
            ),
            ("cuda-wgmma", DeviceOptions { cuda_wgmma: true, ..none.clone() }),
            ("cuda-bf16-decode", DeviceOptions { cuda_bf16_decode: true, ..none.clone() }),
        ] {
            for devices in ["cpu", "wgpu", "cpu=1,wgpu"] {
                let (list, path) = (devices.parse().expect("a list"), Path::new("no-such-model"));
                let load = load(path, &list, None, &options, &LoadOptions::default());
                let error = load.expect_err(devices).to_string();
                let expected = format!(
                    "{name}: requires an NVIDIA GPU used with CUDA; select one with --device cuda"
                );
                assert_eq!(error, expected, "{devices}");
            }
            // A device that takes the place of one by CUDA runs without.
            let on = |choice| options_on(choice, &options) != none;
            let choices = [DeviceChoice::Cuda(None), DeviceChoice::Wgpu(None), DeviceChoice::Cpu];
            assert_eq!(choices.map(on), [true, false, false], "{name}");
            let check = |choices: &[DeviceChoice]| check_cuda(choices.iter().copied(), &options);
            assert!(check(&choices).is_ok());
            assert!(check(&choices[1..]).is_err());
        }
    }

    #[test]
    fn auto_goes_on_with_the_next_best_device() {
        let choices = [DeviceChoice::Cuda(Some(1)), DeviceChoice::Wgpu(Some(0)), DeviceChoice::Cpu];
        let full = || {
            let (device, reason) = ("x".to_owned(), "y".to_owned());
            Error::from(BackendError::Device { device, fault: DeviceFault::OutOfMemory, reason })
        };
        let refused =
            || Error::from(BackendError::Refused { backend: "x".to_owned(), reasons: Vec::new() });
        let not_a_model =
            || Error::from(LoadError::NotAModel { path: "m".into(), reason: "y".to_owned() });
        // How many devices are tried, and whether one takes the model.
        type Fault<'a> = &'a dyn Fn() -> Error;
        let cases: [(&[Fault<'_>], usize, bool); 5] = [
            (&[], 1, true),
            (&[&full], 2, true),
            (&[&refused, &full], 3, true),
            (&[&full, &full, &full], 3, false),
            (&[&full, &not_a_model], 2, false),
        ];
        for (faults, n_tried, is_loaded) in cases {
            let mut tried = Vec::new();
            let result = next_best(&choices, |choice| {
                tried.push(choice);
                faults.get(tried.len() - 1).map_or(Ok(choice), |fault| Err(fault()))
            });
            assert_eq!(tried, choices[..n_tried]);
            assert_eq!(result.ok(), is_loaded.then(|| choices[n_tried - 1]));
        }
    }

    #[test]
    fn auto_gives_up_on_a_device_and_never_on_a_model() {
        let device = |fault| -> Error {
            BackendError::Device { device: "x".to_owned(), fault, reason: "y".to_owned() }.into()
        };
        let cases = [
            (device(DeviceFault::OutOfMemory), true),
            (device(DeviceFault::Other), true),
            (BackendError::Refused { backend: "x".to_owned(), reasons: Vec::new() }.into(), true),
            (Error::Option { option: "ctx", reason: "y".to_owned() }, false),
            (LoadError::NotAModel { path: "m".into(), reason: "y".to_owned() }.into(), false),
        ];
        for (error, expected) in cases {
            assert_eq!(is_of_device(&error), expected, "{error}");
        }
    }
}
