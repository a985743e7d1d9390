//! Reads files that independent implementations wrote, and compares values.
//!
//! `fixtures/make.py` made the files and says what is in them.

use crate::fixture;
use realizar_formats::{Array, Bytes, Error, Gguf, SafeTensors, TensorType, Value};
use realizar_quant::BlockType;

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn hex_tail(bytes: &[u8]) -> String {
    bytes[bytes.len() - 4..].iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn gguf_metadata_of_every_type() {
    let gguf = Gguf::open(fixture("all-types.gguf")).expect("a golden file");
    let m = gguf.metadata();
    let check = |key: &str, value: Value| assert_eq!(m.get(key), Some(&value), "{key}");
    check("general.architecture", "golden".into());
    check("t.u8", 250u8.into());
    check("t.i8", (-100i8).into());
    check("t.u16", 65000u16.into());
    check("t.i16", (-30000i16).into());
    check("t.u32", 4_000_000_000u32.into());
    check("t.i32", (-2_000_000_000i32).into());
    check("t.f32", 1.5f32.into());
    check("t.bool", true.into());
    check("t.str", "héllo\nworld".into());
    check("t.u64", u64::MAX.into());
    check("t.i64", i64::MIN.into());
    check("t.f64", 0.1f64.into());
    check("t.strs", Array::from_strs(["a", "", "ÿ", "<s>"].repeat(10)).into());
    check("t.ints", Array::from(&[1i32, -2, 3][..]).into());
    check("t.floats", Array::from(&[0.5f32, -0.25][..]).into());
    check("t.bools", Array::from(&[true, false, true][..]).into());
    let ints = [&[1i32, 2][..], &[3], &[4, 5, 6]].map(Array::from);
    check("t.nested", Array::from_arrays(&ints).expect("two levels").into());
    let strs = [Array::from_strs(["x", "yz"]), Array::from_strs(["w"])];
    check("t.nested_strs", Array::from_arrays(&strs).expect("two levels").into());
    assert_eq!(m.len(), 19);

    let strs = m.str_array("t.strs").expect("strings").expect("present");
    assert_eq!((strs.len(), strs.get(38), strs.get(39)), (40, "ÿ", "<s>"));
    assert_eq!(m.bool_array("t.bools").expect("bools"), Some(vec![true, false, true]));
    assert_eq!(m.f32_array("t.floats").expect("floats"), Some(vec![0.5, -0.25]));
    assert_eq!(m.i32_array("t.ints").expect("ints"), Some(vec![1, -2, 3]));
}

#[test]
fn gguf_tensors_of_several_types() {
    let gguf = Gguf::open(fixture("all-types.gguf")).expect("a golden file");
    let block = TensorType::Block;
    let expected: [(&str, TensorType, &[usize], usize, &str); 12] = [
        ("f32", TensorType::F32, &[2, 3], 24, "0000a040"),
        ("f16", TensorType::F16, &[5], 10, "00420044"),
        ("i8", TensorType::I8, &[4], 4, "00010203"),
        ("i16", TensorType::I16, &[4], 8, "02000300"),
        ("i32", TensorType::I32, &[2, 2, 2], 32, "07000000"),
        ("i64", TensorType::I64, &[3], 24, "00000000"),
        ("f64", TensorType::F64, &[1, 3], 24, "00000040"),
        ("bf16", block(BlockType::BF16), &[2, 64], 256, "7c417e41"),
        ("q4_0", block(BlockType::Q4_0), &[2, 64], 72, "01010101"),
        ("q4_1", block(BlockType::Q4_1), &[2, 64], 80, "e6e6f7f7"),
        ("q8_0", block(BlockType::Q8_0), &[2, 64], 136, "7c7d7e7f"),
        ("q4_k", block(BlockType::Q4_K), &[2, 256], 288, "1c1d1e1f"),
    ];
    assert_eq!(gguf.tensors().len(), expected.len());
    for (info, (name, ty, shape, n_bytes, tail)) in gguf.tensors().iter().zip(expected) {
        assert_eq!((info.name.as_str(), info.ty, &info.shape[..]), (name, ty, shape));
        assert_eq!((info.n_bytes, info.shard), (n_bytes, 0), "{name}");
        let tensor = gguf.tensor(name).expect("it is listed");
        assert!(tensor.data.is_mapped());
        assert_eq!(tensor.data.len(), n_bytes, "{name}");
        assert_eq!(hex_tail(&tensor.data), tail, "{name}");
        assert_eq!(tensor.to_owned_copy(), tensor);
    }
    let f32 = gguf.tensor("f32").expect("it is listed");
    assert_eq!(f32s(&f32.data), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert!(gguf.tensor("absent").is_none());
}

#[test]
fn gguf_alignment_and_version_2() {
    for (name, version) in [("align-64.gguf", 3), ("v2.gguf", 2)] {
        let gguf = Gguf::open(fixture(name)).expect("a golden file");
        assert_eq!((gguf.version(), gguf.alignment()), (version, 64), "{name}");
        let offsets: Vec<usize> = gguf.tensors().iter().map(|t| t.offset() % 64).collect();
        assert_eq!(offsets, [0, 0], "{name}");
        let b = gguf.tensor("b").expect("it is listed");
        assert_eq!((f32s(&b.data), b.shape), (vec![0.0, 1.0, 2.0, 3.0], vec![2, 2]));
    }
}

#[test]
fn gguf_that_is_not_read_says_why() {
    let check = |name: &str, text: &str| {
        let path = fixture(name);
        let error = Gguf::open(&path).expect_err("an unsupported file").to_string();
        assert_eq!(error, format!("{}: {text}", path.display()));
    };
    check("v1.gguf", "unsupported GGUF version: expected 2 or 3, found 1");
    check(
        "big-endian.gguf",
        "unsupported byte order: expected a little-endian file, found a big-endian file of version 3",
    );
    check(
        "dtypes.safetensors",
        "not a GGUF file: expected the bytes 'GGUF', found the bytes '\\xa0\\x03\\x00\\x00'",
    );
}

#[test]
fn a_split_model_opens_from_any_file() {
    for i in 1..=3 {
        let gguf = Gguf::open(fixture(&format!("split-{i:05}-of-00003.gguf"))).expect("a model");
        assert_eq!(gguf.metadata().u32("golden.block_count").expect("u32"), Some(7));
        assert_eq!(gguf.shard_paths().count(), 3);
        let shards: Vec<usize> = gguf.tensors().iter().map(|t| t.shard).collect();
        assert_eq!(shards, [0, 0, 1, 1, 2]);
        let last = gguf.tensor("blk.4.weight").expect("it is in the third file");
        assert_eq!(f32s(&last.data), [40.0, 41.0, 42.0, 43.0, 44.0, 45.0]);
    }
}

#[test]
fn a_split_model_names_what_is_missing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let copy = |from: &str, to: &str| {
        std::fs::copy(fixture(from), dir.path().join(to)).expect("a copy");
    };
    let [one, two, three] = [1, 2, 3].map(|i| format!("split-{i:05}-of-00003.gguf"));
    copy(&one, &one);
    copy(&three, &three);
    let first = dir.path().join(&one);
    let open = || Gguf::open(&first).expect_err("an incomplete model");
    match open() {
        Error::MissingShard { path, shard } => {
            assert_eq!((path, shard), (first.clone(), dir.path().join(&two)));
        }
        other => panic!("{other}"),
    }
    copy(&three, &two);
    let error = open().to_string();
    assert!(error.ends_with("key 'split.no': expected file 2 of 3, found file 3 of 3"), "{error}");
    copy("align-64.gguf", &two);
    let error = open().to_string();
    assert!(error.ends_with("key 'split.count': expected a value, found none"), "{error}");

    copy(&one, "renamed.gguf");
    let error = Gguf::open(dir.path().join("renamed.gguf")).expect_err("a lone shard").to_string();
    assert!(error.contains("expected a name ending in -00001-of-00003.gguf"), "{error}");
    let bytes = Bytes::map(&fixture(&one)).expect("a map");
    assert!(Gguf::from_bytes("lone", bytes).is_err());
}

#[test]
fn safetensors_of_every_dtype() {
    let file = SafeTensors::open(fixture("dtypes.safetensors")).expect("a golden file");
    let mut metadata = file.metadata().to_vec();
    metadata.sort();
    let expected = [("format", "np"), ("note", "é\n")].map(|(k, v)| (k.into(), v.into()));
    assert_eq!(metadata, expected);
    let expected: [(&str, TensorType, &[u8]); 11] = [
        ("int8", TensorType::I8, &[5]),
        ("uint8", TensorType::U8, &[5]),
        ("int16", TensorType::I16, &[5, 0]),
        ("uint16", TensorType::U16, &[5, 0]),
        ("float16", TensorType::F16, &[0, 0x45]),
        ("int32", TensorType::I32, &[5, 0, 0, 0]),
        ("uint32", TensorType::U32, &[5, 0, 0, 0]),
        ("float32", TensorType::F32, &[0, 0, 0xa0, 0x40]),
        ("int64", TensorType::I64, &[5, 0, 0, 0, 0, 0, 0, 0]),
        ("uint64", TensorType::U64, &[5, 0, 0, 0, 0, 0, 0, 0]),
        ("float64", TensorType::F64, &[0, 0, 0, 0, 0, 0, 0x14, 0x40]),
    ];
    for (name, ty, last) in expected {
        let tensor = file.tensor(name).expect(name);
        assert_eq!((tensor.ty, &tensor.shape[..]), (ty, &[2, 3][..]), "{name}");
        assert_eq!(tensor.data.len(), 6 * last.len(), "{name}");
        assert_eq!(&tensor.data[5 * last.len()..], last, "{name}");
    }
    let bools = file.tensor("bool").expect("it is listed");
    assert_eq!((bools.ty, &bools.data[..]), (TensorType::Bool, &[1, 0, 1][..]));
    let scalar = file.tensor("scalar").expect("it is listed");
    assert_eq!((scalar.shape.len(), f32s(&scalar.data)), (0, vec![2.5]));
    let empty = file.tensor("empty").expect("it is listed");
    assert_eq!((&empty.shape[..], empty.data.len()), (&[0, 4][..], 0));
    assert_eq!(file.tensors().len(), 14);

    let small = SafeTensors::open(fixture("small-floats.safetensors")).expect("a golden file");
    let names = ["bf16", "f8_e4m3", "f8_e5m2"].map(|n| small.tensor(n).expect(n).ty);
    assert_eq!(names, [TensorType::BF16, TensorType::F8E4M3, TensorType::F8E5M2]);
    assert_eq!(&small.tensor("f8_e4m3").expect("it is listed").data[..], &[0x38, 0x40]);
}

#[test]
fn sharded_safetensors_open_by_directory_and_by_index() {
    let dir = fixture("sharded");
    for path in [dir.clone(), dir.join("model.safetensors.index.json")] {
        let model = SafeTensors::open(&path).expect("a golden model");
        assert_eq!((model.path(), model.shard_paths().count()), (path.as_path(), 2));
        let b = model.tensor("layers.1.b").expect("it is in the second file");
        assert_eq!(f32s(&b.data), [101.0, 102.0, 103.0, 104.0]);
        assert_eq!(model.tensor_info("layers.1.b").map(|t| t.shard), Some(1));
    }
    let lone = SafeTensors::open(dir.join("model-00001-of-00002.safetensors")).expect("a file");
    assert_eq!(lone.tensors().len(), 2);
}

#[test]
fn a_wrong_index_is_an_error() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = "model-00001-of-00002.safetensors";
    std::fs::copy(fixture("sharded").join(file), dir.path().join(file)).expect("a copy");
    let index = dir.path().join("model.safetensors.index.json");
    let check = |json: &str, text: &str| {
        std::fs::write(&index, json).expect("written");
        let error = SafeTensors::open(dir.path()).expect_err(json).to_string();
        assert!(error.contains(text), "{json}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    };
    check(r#"{"weight_map": {"x": "gone.safetensors"}}"#, "gone.safetensors, found no such file");
    check(r#"{"weight_map": {"x": "../up.safetensors"}}"#, "the name of a file beside the index");
    check(r#"{"weight_map": {"x": "/etc/passwd"}}"#, "the name of a file beside the index");
    check(r#"{"weight_map": {"x": ""}}"#, "the name of a file beside the index");
    check(r#"{"weight_map": {"x": "a", "x": "b"}}"#, "tensor 'x': expected a name once");
    check(r#"{"weight_map": {"x": 3}}"#, "index: invalid type");
    check(r#"{}"#, "missing field `weight_map`");
    check(&format!(r#"{{"weight_map": {{"x": "{file}"}}}}"#), "tensor 'x': expected data in model");
}
