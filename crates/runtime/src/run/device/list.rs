//! What devices this machine has. Nothing is opened, and a driver that is not
//! installed is a note, never an error.

use super::DeviceChoice;
use realizar_kernels_cpu::{MainMemory, Tier, default_threads};
#[cfg(feature = "wgpu")]
use realizar_kernels_wgpu::AdapterKind;
use serde::Serialize;

/// Said where a CUDA device is requested in a build without them.
#[cfg(not(feature = "cuda"))]
pub(super) const NO_CUDA: &str = "CUDA is not part of this build (crate feature `cuda`)";
/// Said where a wgpu device is requested in a build without them.
#[cfg(not(feature = "wgpu"))]
pub(super) const NO_WGPU: &str = "wgpu is not part of this build (crate feature `wgpu`)";

/// A device of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// Its name as a [`super::DeviceChoice`]: `cpu`, `wgpu:0`.
    pub name: String,
    /// What its maker or its driver calls it.
    pub title: String,
    /// `processor`, or the kind of GPU: `discrete`, `integrated`, `virtual`,
    /// `software` or `other`.
    pub kind: &'static str,
    /// The interface it is reached by: `native`, `cuda`, `vulkan`, `metal` or `dx12`.
    pub api: &'static str,
    /// The driver and its version; empty for the processor.
    pub driver: String,
    /// Bytes of its memory, where they are known.
    pub memory_bytes: Option<u64>,
    /// What it has beyond the least that kernels need.
    pub features: Vec<String>,
}

/// The devices of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Devices {
    /// The processor, then every GPU.
    pub devices: Vec<DeviceInfo>,
    /// The name of the device that `auto` tries first.
    pub auto: String,
    /// What is missing and what would bring it.
    pub notes: Vec<String>,
}

/// Lists the devices of this machine.
pub fn devices() -> Devices {
    let mut devices = vec![processor()];
    let mut notes = Vec::new();
    list_cuda(&mut devices, &mut notes);
    list_gpus(&mut devices, &mut notes);
    Devices { devices, auto: auto().to_string(), notes }
}

/// As [`devices`], but drivers are not loaded where the system reports no GPU; then a
/// driver in software is not listed either.
pub fn devices_in_hardware() -> Devices {
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    if !may_have_gpu() {
        let notes = vec!["the system reports no GPU".to_owned()];
        return Devices { devices: vec![processor()], auto: auto().to_string(), notes };
    }
    devices()
}

/// The device that `auto` tries first: the first card that the CUDA driver runs the kernels on, else the first GPU in
/// hardware, else the processor.
pub(super) fn auto() -> DeviceChoice {
    let gpu = || first_gpu().map(|index| DeviceChoice::Wgpu(Some(index)));
    card().or_else(gpu).unwrap_or(DeviceChoice::Cpu)
}

/// The devices that `auto` tries, in their order; the processor is the last one.
pub(super) fn choices() -> Vec<DeviceChoice> {
    let gpu = first_gpu().map(|index| DeviceChoice::Wgpu(Some(index)));
    card().into_iter().chain(gpu).chain([DeviceChoice::Cpu]).collect()
}

fn card() -> Option<DeviceChoice> {
    first_card().map(|index| DeviceChoice::Cuda(Some(index)))
}

fn processor() -> DeviceInfo {
    let n_threads = default_threads();
    let mut features: Vec<String> = Tier::available().map(|tier| tier.name().to_owned()).collect();
    features.push(format!("{n_threads} threads"));
    DeviceInfo {
        name: "cpu".to_owned(),
        title: processor_title(),
        kind: "processor",
        api: "native",
        driver: String::new(),
        memory_bytes: MainMemory::detect().map(|memory| memory.total_bytes),
        features,
    }
}

/// The model name that Linux knows; the architecture elsewhere.
pub(super) fn processor_title() -> String {
    let info = read_system_file("/proc/cpuinfo");
    field(&info, "model name").unwrap_or(std::env::consts::ARCH).to_owned()
}

/// The text of a file of the system; empty where there is none.
fn read_system_file(path: &str) -> String {
    if cfg!(target_os = "linux") {
        std::fs::read_to_string(path).unwrap_or_default()
    } else {
        String::new()
    }
}

/// The value of the first line `key : value`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let (_, value) =
        text.lines().filter_map(|l| l.split_once(':')).find(|(k, _)| k.trim() == key)?;
    Some(value.trim())
}

/// The interface of cards, in lists of devices.
#[cfg(feature = "cuda")]
const CUDA: &str = "cuda";

#[cfg(feature = "cuda")]
fn list_cuda(devices: &mut Vec<DeviceInfo>, notes: &mut Vec<String>) {
    use realizar_kernels_cuda::Driver;
    let n = match Driver::n_devices() {
        Ok(0) => return notes.push("the CUDA driver found no device".to_owned()),
        Ok(n) => n,
        Err(error) => return notes.push(error.to_string()),
    };
    for index in 0..n {
        match Driver::describe(index) {
            Ok(card) => devices.push(DeviceInfo {
                name: format!("{CUDA}:{index}"),
                title: card.name,
                kind: "discrete",
                api: CUDA,
                driver: format!("CUDA {}", card.driver),
                memory_bytes: Some(card.n_bytes as u64),
                features: vec![format!("compute capability {}", card.capability)],
            }),
            Err(error) => notes.push(error.to_string()),
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn list_cuda(_: &mut Vec<DeviceInfo>, notes: &mut Vec<String>) {
    notes.push(NO_CUDA.to_owned());
}

/// The index of the first card that runs the kernels.
#[cfg(feature = "cuda")]
fn first_card() -> Option<usize> {
    use realizar_kernels_cuda::Driver;
    if !may_have_gpu() {
        return None;
    }
    let n = Driver::n_devices().unwrap_or(0);
    (0..n).find(|&index| Driver::describe(index).is_ok())
}

/// The index of the first card: this build reaches none.
#[cfg(not(feature = "cuda"))]
fn first_card() -> Option<usize> {
    None
}

/// Why no card of a CUDA driver is used, where there is one that would be with a newer driver or another card.
#[cfg(feature = "cuda")]
pub(super) fn passed_over() -> Option<String> {
    use realizar_kernels_cuda::{Driver, Error};
    if !may_have_gpu() || first_card().is_some() {
        return None;
    }
    let error = Driver::describe(0).err()?;
    let is_told = matches!(error, Error::OldDriver { .. } | Error::OldDevice { .. });
    is_told.then(|| format!("no device can be used with CUDA: {error}"))
}

/// Why no card is used: this build reaches none.
#[cfg(not(feature = "cuda"))]
pub(super) fn passed_over() -> Option<String> {
    None
}

#[cfg(feature = "wgpu")]
fn list_gpus(devices: &mut Vec<DeviceInfo>, notes: &mut Vec<String>) {
    let adapters = realizar_kernels_wgpu::Adapter::all();
    devices.extend(adapters.iter().map(|adapter| DeviceInfo {
        name: format!("wgpu:{}", adapter.index()),
        title: adapter.name(),
        kind: adapter.kind().name(),
        api: adapter.api(),
        driver: adapter.driver(),
        memory_bytes: adapter.memory(),
        features: adapter.features(),
    }));
    if adapters.is_empty() {
        let api = match std::env::consts::OS {
            "macos" | "ios" => "Metal",
            "windows" => "DX12 or Vulkan",
            _ => "Vulkan",
        };
        notes.push(format!("no {api} driver was found, so no GPU can be used"));
    }
}

#[cfg(not(feature = "wgpu"))]
fn list_gpus(_: &mut Vec<DeviceInfo>, notes: &mut Vec<String>) {
    notes.push(NO_WGPU.to_owned());
}

/// Whether the kernel of the system knows of a GPU, so that drivers need not be
/// loaded on a machine without one: they take time and memory, and some print.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn may_have_gpu() -> bool {
    const NODES: [&str; 5] =
        ["/dev/dri", "/dev/nvidiactl", "/dev/dxg", "/dev/mali0", "/dev/kgsl-3d0"];
    !cfg!(target_os = "linux") || NODES.iter().any(|node| std::path::Path::new(node).exists())
}

/// The index of the first GPU in hardware.
#[cfg(feature = "wgpu")]
fn first_gpu() -> Option<usize> {
    if !may_have_gpu() {
        return None;
    }
    first_hardware(realizar_kernels_wgpu::Adapter::all().iter().map(|adapter| adapter.kind()))
}

#[cfg(feature = "wgpu")]
fn first_hardware(mut kinds: impl Iterator<Item = AdapterKind>) -> Option<usize> {
    kinds.position(AdapterKind::is_hardware)
}

/// The index of the first GPU in hardware: this build reaches none.
#[cfg(not(feature = "wgpu"))]
fn first_gpu() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_always_there() {
        let found = devices();
        let cpu = &found.devices[0];
        assert_eq!((&*cpu.name, cpu.kind, cpu.api), ("cpu", "processor", "native"));
        assert!(cpu.features.iter().any(|f| f == "scalar"), "{:?}", cpu.features);
        let is_cuda = |device: &&DeviceInfo| device.api == "cuda";
        let n_cards = found.devices.iter().filter(is_cuda).count();
        for (index, gpu) in found.devices[1..].iter().enumerate() {
            let wanted = match index.checked_sub(n_cards) {
                None => DeviceChoice::Cuda(Some(index)),
                Some(index) => DeviceChoice::Wgpu(Some(index)),
            };
            assert_eq!(gpu.name.parse().ok(), Some(wanted), "{gpu:?}");
        }
        let auto = found.devices.iter().find(|device| device.name == found.auto);
        let kind = auto.map(|device| device.kind);
        assert!(
            matches!(kind, Some("processor" | "discrete" | "integrated" | "virtual")),
            "{found:?}"
        );
        // Of each interface a GPU is listed, or a note says why not.
        let has_others = found.devices.len() > 1 + n_cards;
        let n_listed = usize::from(n_cards > 0) + usize::from(has_others);
        assert_eq!(n_listed + found.notes.len(), 2, "{found:?}");
    }

    #[cfg(feature = "wgpu")]
    #[test]
    fn software_is_not_chosen() {
        use AdapterKind::{Discrete, Integrated, Other, Software, Virtual};
        for (kinds, expected) in [
            (&[][..], None),
            (&[Software], None),
            (&[Other, Software], None),
            (&[Other, Integrated, Software], Some(1)),
            (&[Discrete, Integrated], Some(0)),
            (&[Virtual], Some(0)),
        ] {
            assert_eq!(first_hardware(kinds.iter().copied()), expected, "{kinds:?}");
        }
    }

    #[test]
    fn lines_of_the_system_are_read() {
        let text = "processor\t: 0\nmodel name\t: Fast: 9\nmodel name\t: other\n";
        assert_eq!(field(text, "model name"), Some("Fast: 9"));
        assert_eq!(field(text, "MemTotal"), None);
    }
}
