//! The adapters of this machine, before one is opened.

use std::sync::OnceLock;

/// The kind of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdapterKind {
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares main memory.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// A driver that computes on the CPU, such as Mesa's lavapipe.
    Software,
    /// Not reported by the driver.
    Other,
}

impl AdapterKind {
    /// The kind's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Software => "software",
            Self::Other => "other",
        }
    }

    /// Whether the adapter is known to be a hardware GPU or a share of one; false if the driver does not
    /// report the kind.
    pub fn is_hardware(self) -> bool {
        matches!(self, Self::Discrete | Self::Integrated | Self::Virtual)
    }
}

/// An adapter of this machine.
#[derive(Debug, Clone)]
pub struct Adapter {
    raw: wgpu::Adapter,
    index: usize,
}

/// Maximum percentage of the driver's memory budget that buffers may take.
const MEMORY_PERCENT: u8 = 95;

/// The process's only instance; creating another would load every driver again.
fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: wgpu::Backends::PRIMARY,
            // Some drivers silently move buffers that do not fit to main memory.
            memory_budget_thresholds: wgpu::MemoryBudgetThresholds {
                for_resource_creation: Some(MEMORY_PERCENT),
                for_device_loss: None,
            },
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        })
    })
}

impl Adapter {
    /// All adapters: discrete ones first, software last, otherwise in the drivers' order. An adapter's index is
    /// its place in this list. Empty if there is no driver.
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

    /// The adapter's place in [`Self::all`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// The adapter's name, as its driver reports it.
    pub fn name(&self) -> String {
        self.raw.get_info().name
    }

    /// The adapter's kind.
    pub fn kind(&self) -> AdapterKind {
        match self.raw.get_info().device_type {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
            wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
            wgpu::DeviceType::Cpu => AdapterKind::Software,
            wgpu::DeviceType::Other => AdapterKind::Other,
        }
    }

    /// The API of its driver: `vulkan`, `metal` or `dx12`.
    pub fn api(&self) -> &'static str {
        self.raw.get_info().backend.to_str()
    }

    /// The driver and its version.
    pub fn driver(&self) -> String {
        let info = self.raw.get_info();
        format!("{} {}", info.driver, info.driver_info).trim().to_owned()
    }

    /// Bytes of the adapter's memory: its largest device-local heap, which for integrated and software adapters
    /// is a part of main memory. `None` with other APIs than Vulkan, which do not report it.
    pub fn memory(&self) -> Option<u64> {
        vulkan_memory(&self.raw)
    }

    /// The adapter's optional features, for a listing, such as `subgroups 32..64`, `f16`, `timestamps`.
    pub fn features(&self) -> Vec<String> {
        let (info, limits, features) =
            (self.raw.get_info(), self.raw.limits(), self.raw.features());
        let mut list = Vec::new();
        if features.contains(wgpu::Features::SUBGROUP) {
            let (least, most) = (info.subgroup_min_size, info.subgroup_max_size);
            list.push(format!("subgroups {least}..{most}"));
        }
        let named =
            [("f16", wgpu::Features::SHADER_F16), ("timestamps", wgpu::Features::TIMESTAMP_QUERY)];
        let had = named.into_iter().filter(|(_, feature)| features.contains(*feature));
        list.extend(had.map(|(name, _)| name.to_owned()));
        // WGSL has them on every device; see `GpuOptions::packed_dot`.
        list.push("packed dot".to_owned());
        list.push(format!("bindings of {} MiB", limits.max_storage_buffer_binding_size >> 20));
        list
    }

    pub(crate) fn raw(&self) -> &wgpu::Adapter {
        &self.raw
    }
}

/// The largest device-local heap of a Vulkan adapter.
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn vulkan_memory(adapter: &wgpu::Adapter) -> Option<u64> {
    /// `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
    const DEVICE_LOCAL: u32 = 1;
    // SAFETY: the adapter behind the guard is only asked for its handles, and none
    // of them is destroyed or kept.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = adapter.shared_instance().raw_instance();
    // SAFETY: the physical device was enumerated from this very instance, and both
    // live as long as the guard.
    let memory =
        unsafe { instance.get_physical_device_memory_properties(adapter.raw_physical_device()) };
    let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize);
    heaps.filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0).map(|heap| heap.size).max()
}

/// Other APIs do not report the heaps.
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn vulkan_memory(_adapter: &wgpu::Adapter) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_in_order_and_tell_their_memory_and_features() {
        let adapters = Adapter::all();
        if adapters.is_empty() {
            println!("skipped: no GPU adapter on this machine");
        }
        for (i, adapter) in adapters.iter().enumerate() {
            assert_eq!(adapter.index(), i);
            assert!(!adapter.name().is_empty());
            let memory = adapter.memory();
            if adapter.api() == "vulkan" {
                // From 16 MiB to 16 TiB.
                let plausible = memory.is_some_and(|n| (1 << 24..1 << 44).contains(&n));
                assert!(plausible, "{memory:?}");
            }
            let features = adapter.features();
            let caps = crate::Gpu::with_adapter(adapter, crate::GpuOptions::default())
                .unwrap()
                .caps()
                .clone();
            let has = |name: &str| features.iter().any(|f| f.split(' ').next() == Some(name));
            assert_eq!(has("subgroups"), caps.subgroups, "{features:?}");
            assert_eq!(has("f16"), caps.f16, "{features:?}");
            assert_eq!(has("timestamps"), caps.timestamps, "{features:?}");
            println!("{}: {memory:?} bytes, {}", adapter.name(), features.join(", "));
        }
    }
}
