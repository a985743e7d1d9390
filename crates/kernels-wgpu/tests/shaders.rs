//! Validation of all shader variants by naga, the compiler in wgpu.
//!
//! A shader is parsed, validated, compared with its list of bindings, and written as SPIR-V (Vulkan), MSL
//! (Metal) and HLSL (DX12), so that one machine checks all three APIs. The assembled texts are kept in
//! `kernels/` of Cargo's directory for temporary files of tests.

use naga::ShaderStage;
use naga::back::pipeline_constants::process_overrides;
use naga::back::{PipelineConstants, hlsl, msl, spv};
use naga::proc::BoundsCheckPolicies;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, Module, StorageAccess};
use realizar_kernels_wgpu::shader::{Access, Shader};
use realizar_kernels_wgpu::shaders;
use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::fs;
use std::path::Path;

/// The entry point of every shader.
const ENTRY: &str = "main";

/// Bytes of a shader in WGSL and in the language of each API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sizes {
    wgsl: usize,
    spirv: usize,
    msl: usize,
    hlsl: usize,
}

/// All variants of one kernel.
#[derive(Default)]
struct Kernel {
    variants: usize,
    /// The maximum of each size over the variants.
    largest: Sizes,
}

#[test]
fn every_shader_is_valid_for_each_api() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("no variants that are no more");
    }
    fs::create_dir_all(&folder).expect("a folder");
    let shaders = shaders();
    assert!(!shaders.is_empty());
    let mut kernels: BTreeMap<String, Kernel> = BTreeMap::new();
    let mut files: BTreeMap<String, usize> = BTreeMap::new();
    let mut names = HashSet::new();
    let mut errors = Vec::new();
    for shader in &shaders {
        let name = format!("{} {:?}", shader.name, shader.constants);
        assert!(names.insert(name), "two shaders are named {}", shader.name);
        // Several variants may have the same text with different constants.
        let stem = file_name(&shader.name);
        let n = files.entry(stem.clone()).or_default();
        let name = if *n == 0 { stem } else { format!("{stem}-{n}") };
        *n += 1;
        fs::write(folder.join(name + ".wgsl"), text(shader)).expect("a file");
        let kernel = kernels.entry(first_word(&shader.name).to_owned()).or_default();
        kernel.variants += 1;
        match check(shader) {
            Ok(sizes) => kernel.largest = larger(kernel.largest, sizes),
            Err(error) => errors.push(format!("{}: {error}", shader.name)),
        }
    }
    println!("bytes of the largest variant\n");
    println!("{:<20} variants    WGSL  SPIR-V     MSL    HLSL", "kernel");
    for (name, Kernel { variants, largest }) in &kernels {
        let Sizes { wgsl, spirv, msl, hlsl } = largest;
        println!("{name:<20} {variants:>8} {wgsl:>7} {spirv:>7} {msl:>7} {hlsl:>7}");
    }
    println!("\n{} shaders, texts in {}", shaders.len(), folder.display());
    assert!(errors.is_empty(), "not valid:\n{}", errors.join("\n"));
}

/// The text, preceded by its name and the values of its constants.
fn text(shader: &Shader) -> String {
    let mut text = format!("// {}\n", shader.name);
    for (name, value) in &shader.constants {
        text += &format!("// {name} = {value}\n");
    }
    text + &shader.source()
}

/// Parse, validate and write one shader for each API.
fn check(shader: &Shader) -> Result<Sizes, Box<dyn Error>> {
    let source = shader.source();
    let module =
        naga::front::wgsl::parse_str(&source).map_err(|error| error.emit_to_string(&source))?;
    let bindings = storage(&module);
    if bindings != shader.bindings {
        return Err(format!("its bindings are {bindings:?}, not {:?}", shader.bindings).into());
    }
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(&source))?;
    let constants: PipelineConstants =
        shader.constants.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    let entry = (ShaderStage::Compute, ENTRY);
    let (module, info) = process_overrides(&module, &info, Some(entry), &constants)?;
    let entry = Some((ShaderStage::Compute, ENTRY.to_owned()));

    let options = spv::Options { lang_version: (1, 3), ..spv::Options::default() };
    let pipeline =
        spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: ENTRY.to_owned() };
    let spirv = spv::write_vec(&module, &info, &options, Some(&pipeline))
        .map_err(|error| format!("SPIR-V: {error}"))?;

    let options = msl::Options {
        lang_version: (2, 4),
        bounds_check_policies: BoundsCheckPolicies::default(),
        ..msl::Options::default()
    };
    let pipeline = msl::PipelineOptions { entry_point: entry.clone(), ..Default::default() };
    let (msl, written) = msl::write_string(&module, &info, &options, &pipeline)
        .map_err(|error| format!("MSL: {error}"))?;
    for name in written.entry_point_names {
        name.map_err(|error| format!("MSL: {error}"))?;
    }

    let options =
        hlsl::Options { shader_model: hlsl::ShaderModel::V6_6, ..hlsl::Options::default() };
    let pipeline = hlsl::PipelineOptions { entry_point: entry };
    let mut hlsl = String::new();
    let mut writer = hlsl::Writer::new(&mut hlsl, &options, &pipeline);
    let written = writer.write(&module, &info, None).map_err(|error| format!("HLSL: {error}"))?;
    for name in written.entry_point_names {
        name.map_err(|error| format!("HLSL: {error}"))?;
    }
    Ok(Sizes { wgsl: source.len(), spirv: 4 * spirv.len(), msl: msl.len(), hlsl: hlsl.len() })
}

/// The storage buffers of a shader, in the order of their bindings.
fn storage(module: &Module) -> Vec<Access> {
    let buffers = module.global_variables.iter().filter_map(|(_, variable)| {
        let AddressSpace::Storage { access } = variable.space else { return None };
        let access = match access.contains(StorageAccess::STORE) {
            true => Access::ReadWrite,
            false => Access::Read,
        };
        variable.binding.map(|at| (at.binding, access))
    });
    let buffers: BTreeMap<u32, Access> = buffers.collect();
    buffers.into_values().collect()
}

fn larger(a: Sizes, b: Sizes) -> Sizes {
    Sizes {
        wgsl: a.wgsl.max(b.wgsl),
        spirv: a.spirv.max(b.spirv),
        msl: a.msl.max(b.msl),
        hlsl: a.hlsl.max(b.hlsl),
    }
}

/// The kernel of a shader named `matvec int8 Q4_K plain`.
fn first_word(name: &str) -> &str {
    name.split(' ').next().unwrap_or(name)
}

/// The shader's name with dashes in place of all but letters, digits and underscores.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect()
}

fn shader(text: &'static str) -> Shader {
    let constants = vec![("N", 3.0)];
    Shader { name: "a b".into(), parts: vec![text], bindings: &[Access::ReadWrite], constants }
}

#[test]
fn a_shader_is_written_for_each_api() {
    let good = "override N: u32;\n@group(0) @binding(1) var<storage, read_write> x: \
        array<u32>;\n@compute @workgroup_size(1) fn main() { x[0] = N; }\n";
    let sizes = check(&shader(good)).unwrap();
    assert_eq!(sizes.wgsl, good.len());
    assert!(sizes.spirv > 100 && sizes.msl > 100 && sizes.hlsl > 100, "{sizes:?}");
}

#[test]
fn what_is_wrong_is_said() {
    let buffer =
        "@group(0) @binding(1) var<storage, read_write> x: array<u32>;\noverride N: u32;\n";
    for (text, expected) in [
        ("fn main( {}", "expected"),
        ("@compute @workgroup_size(1) fn main() { let a: f32 = N; }", "f32"),
        ("@group(0) @binding(2) var<storage, read> y: array<u32>;", "not [ReadWrite]"),
        ("fn other() {}", "entry point"),
    ] {
        let shader = Shader { parts: vec![buffer, text], ..shader("") };
        let error = check(&shader).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn names_become_files() {
    assert_eq!(file_name("attention_decode F16 64 x4"), "attention_decode-F16-64-x4");
    assert_eq!(first_word("matvec int8 Q4_K plain"), "matvec");
    assert_eq!(text(&shader("x")), "// a b\n// N = 3\nx");
}
