//! The adapters of this machine: what there is, before one is opened.

use std::sync::OnceLock;

/// The kind of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdapterKind {
    /// A card with its own memory.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// A driver that runs on the processor, such as Mesa's lavapipe.
    Software,
    /// The driver does not say.
    Other,
}

impl AdapterKind {
    /// The kind as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Software => "software",
            Self::Other => "other",
        }
    }
}

/// An adapter of this machine.
#[derive(Debug, Clone)]
pub struct Adapter {
    raw: wgpu::Adapter,
    index: usize,
}

/// The one instance of the process: making another loads every driver again.
fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: wgpu::Backends::PRIMARY,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        })
    })
}

impl Adapter {
    /// Every adapter: discrete ones first, software last, otherwise in the order
    /// of the drivers. An adapter's place in this list is its index. Empty
    /// without a driver.
    pub fn all() -> Vec<Self> {
        let found = pollster::block_on(instance().enumerate_adapters(wgpu::Backends::PRIMARY));
        let mut adapters: Vec<Self> = found.into_iter().map(|raw| Self { raw, index: 0 }).collect();
        adapters.sort_by_key(|adapter| match adapter.kind() {
            AdapterKind::Discrete => 0,
            AdapterKind::Integrated => 1,
            AdapterKind::Virtual => 2,
            AdapterKind::Other => 3,
            AdapterKind::Software => 4,
        });
        adapters.iter_mut().enumerate().for_each(|(i, adapter)| adapter.index = i);
        adapters
    }

    /// Its place in [`Self::all`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// The name that its driver gives it.
    pub fn name(&self) -> String {
        self.raw.get_info().name
    }

    /// Its kind.
    pub fn kind(&self) -> AdapterKind {
        match self.raw.get_info().device_type {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
            wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
            wgpu::DeviceType::Cpu => AdapterKind::Software,
            wgpu::DeviceType::Other => AdapterKind::Other,
        }
    }

    /// The interface it is reached by: `vulkan`, `metal` or `dx12`.
    pub fn api(&self) -> &'static str {
        self.raw.get_info().backend.to_str()
    }

    /// The driver and its version.
    pub fn driver(&self) -> String {
        let info = self.raw.get_info();
        format!("{} {}", info.driver, info.driver_info).trim().to_owned()
    }

    pub(crate) fn raw(&self) -> &wgpu::Adapter {
        &self.raw
    }
}
