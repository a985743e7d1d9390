//! From the name of a device to a backend, and from there to a loaded model.
//!
//! A device that was named is used or is an error. `auto` prefers a GPU and
//! falls back to the processor, with a warning where a GPU was there. What each
//! device does with a plan is the matter of its backend.

mod list;
mod machine;

pub use list::{DeviceInfo, Devices, devices, devices_in_hardware};
pub use machine::{CacheInfo, Cores, HugePagesInfo, Machine, Memory, NodeInfo, Tiers, machine};

use super::{LayerSplit, LoadOptions, Model};
use crate::Error;
use crate::backend::cpu::{Affinity, CpuBackend};
use crate::backend::{Backend, MemoryUse};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A device as people choose it: `auto`, `cpu`, `wgpu`, `wgpu:1`, `cuda`, `cuda:0`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first hardware GPU that can run the model, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// A GPU by Vulkan, Metal or DX12: the one of this index in [`devices`], or
    /// the first, be it a driver in software.
    Wgpu(Option<usize>),
    /// A GPU by CUDA.
    Cuda(Option<usize>),
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, index) = match self {
            Self::Auto => ("auto", None),
            Self::Cpu => ("cpu", None),
            Self::Wgpu(index) => ("wgpu", *index),
            Self::Cuda(index) => ("cuda", *index),
        };
        match index {
            Some(index) => write!(f, "{name}:{index}"),
            None => f.write_str(name),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = match text.split_once(':') {
            None => match text {
                "auto" => Some(Self::Auto),
                "cpu" => Some(Self::Cpu),
                "wgpu" => Some(Self::Wgpu(None)),
                "cuda" => Some(Self::Cuda(None)),
                _ => None,
            },
            Some((name, index)) => match (name, index.parse::<u32>()) {
                ("wgpu", Ok(index)) => Some(Self::Wgpu(Some(index as usize))),
                ("cuda", Ok(index)) => Some(Self::Cuda(Some(index as usize))),
                _ => None,
            },
        };
        parsed.ok_or_else(|| {
            refused(format!("`{text}` is none of auto, cpu, wgpu, wgpu:N, cuda and cuda:N"))
        })
    }
}

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
        DeviceChoice::Cuda(_) => Err(no_cuda()),
    }
}

/// Loads the model at `path` onto the device of `choice`; with `gpu_layers`, the
/// last layers of that number and the head onto it and the rest onto the
/// processor.
///
/// # Errors
/// As [`open`] and [`Model::load`]. A GPU that `auto` chose and that cannot run
/// or hold the model is not an error: the processor takes the model. There is no
/// such way out with `gpu_layers`. An option of the GPU is an error where the
/// processor is the only choice.
pub fn load(
    path: &Path,
    choice: &DeviceChoice,
    gpu_layers: Option<usize>,
    options: &DeviceOptions,
    load_options: &LoadOptions,
) -> Result<Loaded, Error> {
    // Checked also where the processor has nothing to do.
    let cpu = cpu(options)?;
    let device = match choice {
        DeviceChoice::Auto => list::auto(),
        named => *named,
    };
    if device == DeviceChoice::Cpu {
        let needs_gpu = [("gpu-layers", gpu_layers.is_some()), ("gpu-plain", options.gpu_plain)];
        if let Some((option, _)) = needs_gpu.into_iter().find(|(_, is_set)| *is_set) {
            return Err(without_gpu(option, choice));
        }
    }
    let on_cpu = || -> Result<Loaded, Error> {
        let model = Model::load(path, &cpu, load_options)?;
        Ok(Loaded { model, n_threads: Some(cpu.n_threads()) })
    };
    let on_gpu = || -> Result<Loaded, Error> {
        let gpu = open(&device, options)?;
        Ok(Loaded { model: Model::load(path, &*gpu, load_options)?, n_threads: None })
    };
    if let Some(n_layers) = gpu_layers {
        let gpu = open(&device, options)?;
        let split = LayerSplit { first: &cpu, last: &*gpu, last_layers: n_layers };
        let model = Model::load_split(path, split, load_options)?;
        // With as many layers as it has, all of the model is on the GPU.
        let is_on_cpu = model.placement().parts.iter().any(|part| part.backend == cpu.name());
        return Ok(Loaded { model, n_threads: is_on_cpu.then(|| cpu.n_threads()) });
    }
    if device == DeviceChoice::Cpu {
        return on_cpu();
    }
    match on_gpu() {
        Err(error) if *choice == DeviceChoice::Auto && is_of_device(&error) => {
            tracing::warn!("the CPU takes over from {device}: {error}");
            on_cpu()
        }
        loaded => loaded,
    }
}

/// The memory that [`load`] would take for the same. Where `auto` chose a GPU, it is that of the
/// GPU, and the processor's where the GPU cannot be opened.
///
/// # Errors
/// As [`open`] and [`Model::memory_needed`].
pub fn memory_needed(
    path: &Path,
    choice: &DeviceChoice,
    gpu_layers: Option<usize>,
    options: &DeviceOptions,
    load_options: &LoadOptions,
) -> Result<MemoryUse, Error> {
    let cpu = cpu(options)?;
    let device = match choice {
        DeviceChoice::Auto => list::auto(),
        named => *named,
    };
    let on_cpu = || Model::memory_needed(path, LayerSplit::whole(&cpu), load_options);
    if device == DeviceChoice::Cpu {
        return on_cpu();
    }
    match open(&device, options) {
        Ok(gpu) => {
            let last_layers = gpu_layers.unwrap_or(usize::MAX);
            let split = LayerSplit { first: &cpu, last: &*gpu, last_layers };
            Model::memory_needed(path, split, load_options)
        }
        Err(error) if *choice == DeviceChoice::Auto && is_of_device(&error) => on_cpu(),
        Err(error) => Err(error),
    }
}

/// That an option needs a GPU and `choice` is the processor.
fn without_gpu(option: &'static str, choice: &DeviceChoice) -> Error {
    let reason = match choice {
        DeviceChoice::Auto => "no hardware GPU was found",
        _ => "the device is the CPU; name a GPU with --device",
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
    Ok(Box::new(crate::backend::wgpu::WgpuBackend::open(index, gpu)?))
}

#[cfg(not(feature = "wgpu"))]
fn open_wgpu(_: Option<usize>, _: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    Err(refused(format!("{}; there is `cpu`", list::NO_WGPU)))
}

fn no_cuda() -> Error {
    refused(format!("{}; `wgpu` uses NVIDIA's cards by Vulkan", list::NO_CUDA))
}

fn refused(reason: String) -> Error {
    Error::Option { option: "device", reason }
}

/// Whether another device may do better: the model is not at fault.
fn is_of_device(error: &Error) -> bool {
    matches!(error, Error::Refused { .. } | Error::Device { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DeviceFault;

    #[test]
    fn devices_are_written_as_they_are_read() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("wgpu", DeviceChoice::Wgpu(None)),
            ("wgpu:0", DeviceChoice::Wgpu(Some(0))),
            ("wgpu:12", DeviceChoice::Wgpu(Some(12))),
            ("cuda", DeviceChoice::Cuda(None)),
            ("cuda:3", DeviceChoice::Cuda(Some(3))),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().expect(text), choice);
            assert_eq!(choice.to_string(), text);
        }
        for text in ["", "gpu", "CPU", "cpu:0", "auto:1", "wgpu:", "wgpu:-1", "wgpu:x", "wgpu:1:2"]
        {
            let error = text.parse::<DeviceChoice>().expect_err(text).to_string();
            assert!(error.starts_with(&format!("device: `{text}` is none of auto")), "{error}");
        }
    }

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
        let error = open(&DeviceChoice::Cuda(Some(0)), &options).expect_err("no CUDA").to_string();
        assert!(error.starts_with("device: CUDA is not part of this build"), "{error}");
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
            let load = |choice| load(path, &choice, gpu_layers, &options, &LoadOptions::default());
            let error = load(DeviceChoice::Cpu).expect_err("no GPU").to_string();
            assert_eq!(error, format!("{option}: the device is the CPU; name a GPU with --device"));
            if devices().auto == "cpu" {
                let error = load(DeviceChoice::Auto).expect_err("no GPU").to_string();
                assert_eq!(error, format!("{option}: no hardware GPU was found"));
            }
        }
        // On a GPU only the model is at fault.
        if devices().auto != "cpu" {
            let options = DeviceOptions { gpu_plain: true, ..DeviceOptions::default() };
            let load = load(path, &DeviceChoice::Auto, None, &options, &LoadOptions::default());
            let error = load.expect_err("no model").to_string();
            assert!(error.contains("no-such-model"), "{error}");
        }
    }

    #[test]
    fn auto_gives_up_on_a_device_and_never_on_a_model() {
        let device =
            |fault| Error::Device { device: "x".to_owned(), fault, reason: "y".to_owned() };
        let cases = [
            (device(DeviceFault::OutOfMemory), true),
            (device(DeviceFault::Other), true),
            (Error::Refused { backend: "x".to_owned(), reasons: Vec::new() }, true),
            (Error::Option { option: "ctx", reason: "y".to_owned() }, false),
            (Error::NotAModel { path: "m".into(), reason: "y".to_owned() }, false),
        ];
        for (error, expected) in cases {
            assert_eq!(is_of_device(&error), expected, "{error}");
        }
    }
}
