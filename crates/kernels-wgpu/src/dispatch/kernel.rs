//! Kernels: shaders with constants, bound to buffers.

use crate::device::gpu::CONSTANTS_BYTES;
use crate::device::pipelines::Pipeline;
use crate::dispatch::shader::{Access, Shader};
use crate::{Buffer, Error, Gpu};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// The workgroups of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Number of workgroups along the columns of the result.
    pub x: u32,
    /// Rows per workgroup.
    pub rows: u32,
    /// Number of workgroups in the third dimension.
    pub z: u32,
}

impl Grid {
    /// The workgroups for `n_rows` rows.
    pub(crate) fn workgroups(self, n_rows: u32) -> [u32; 3] {
        [self.x, n_rows.div_ceil(self.rows), self.z]
    }
}

/// A kernel bound to its buffers.
#[derive(Debug, Clone)]
pub struct Kernel {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) bind_group: wgpu::BindGroup,
    pub(crate) grid: Grid,
    /// The buffers of the bind group, which keeps them allocated.
    _buffers: Arc<[Buffer]>,
}

impl Kernel {
    /// Bytes of device memory per bound kernel, besides its pipeline and buffers: its constants with their
    /// alignment.
    pub const N_BYTES: u64 = CONSTANTS_BYTES;

    /// The shader's name.
    pub fn name(&self) -> &str {
        &self.pipeline.name
    }
}

fn layout_entry(binding: u32, ty: wgpu::BufferBindingType) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}

fn layout_entries(bindings: &[Access]) -> Vec<wgpu::BindGroupLayoutEntry> {
    let storage = bindings.iter().zip(1..).map(|(access, binding)| {
        let read_only = *access == Access::Read;
        layout_entry(binding, wgpu::BufferBindingType::Storage { read_only })
    });
    std::iter::once(layout_entry(0, wgpu::BufferBindingType::Uniform)).chain(storage).collect()
}

impl Gpu {
    /// The pipeline of `shader`, compiled when it is first requested.
    fn pipeline(&self, shader: &Shader) -> Result<Arc<Pipeline>, Error> {
        let key = format!("{} {:?}", shader.name, shader.constants);
        let cache = &self.pipelines().0;
        if let Some(made) = cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(made.clone());
        }
        let started = Instant::now();
        self.alive()?;
        let device = self.device();
        let name = Some(&*shader.name);
        let text = wgpu::ShaderModuleDescriptor {
            label: name,
            source: wgpu::ShaderSource::Wgsl(shader.source().into()),
        };
        // Otherwise every loop would get a 64-bit iteration counter.
        let checks = wgpu::ShaderRuntimeChecks {
            force_loop_bounding: false,
            ..wgpu::ShaderRuntimeChecks::checked()
        };
        // SAFETY: what is left out is the bounding of loops. Shaders come from this crate alone, and
        // each of their loops counts up to a number that it does not change.
        let module = unsafe { device.create_shader_module_trusted(text, checks) };
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: name,
            entries: &layout_entries(shader.bindings),
        });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: name,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: name,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &shader.constants,
                // Kernels write workgroup memory before they read it.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        self.check(&format!("the kernel `{}`", shader.name), 0)?;
        tracing::debug!(shader = key, took = ?started.elapsed(), "compiled");
        let pipeline = Arc::new(Pipeline { name: shader.name.to_string(), raw, layout });
        cache.lock().unwrap_or_else(PoisonError::into_inner).insert(key, pipeline.clone());
        Ok(pipeline)
    }

    /// Binds `shader` to its constants and its storage buffers.
    ///
    /// # Errors
    /// If the driver refuses the shader or memory runs out.
    pub(crate) fn kernel<P: bytemuck::Pod>(
        &self,
        shader: &Shader,
        params: &P,
        buffers: &[&Buffer],
        grid: Grid,
    ) -> Result<Kernel, Error> {
        assert_eq!(buffers.len(), shader.bindings.len(), "buffers of {}", shader.name);
        for (workgroups, name) in [(grid.x, "columns"), (grid.z, "planes")] {
            let available = u64::from(self.caps().max_workgroups);
            if u64::from(workgroups) > available {
                return Err(Error::Limit {
                    what: format!("the kernel `{}` ({name})", shader.name),
                    needed: u64::from(workgroups),
                    limit: "maxComputeWorkgroupsPerDimension",
                    available,
                });
            }
        }
        let pipeline = self.pipeline(shader)?;
        let params = self.constants(&shader.name, bytemuck::bytes_of(params))?;
        let held: Arc<[Buffer]> =
            std::iter::once(params).chain(buffers.iter().map(|&buffer| buffer.clone())).collect();
        let entries: Vec<wgpu::BindGroupEntry<'_>> = held
            .iter()
            .zip(0..)
            .map(|(buffer, binding)| wgpu::BindGroupEntry {
                binding,
                resource: buffer.raw.as_entire_binding(),
            })
            .collect();
        let bind_group = self.device().create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&shader.name),
            layout: &pipeline.layout,
            entries: &entries,
        });
        self.check(&format!("the buffers of the kernel `{}`", shader.name), 0)?;
        Ok(Kernel { pipeline, bind_group, grid, _buffers: held })
    }
}
