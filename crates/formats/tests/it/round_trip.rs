//! Writes models and reads them back: values, bytes and files.

use std::io;

use crate::fixture;
use realizar_formats::{
    Array, Bytes, Error, Gguf, GgufWriter, SafeTensors, SafeTensorsWriter, SplitLimits, TensorType,
    Value,
};
use realizar_quant::BlockType;

/// A writer with the metadata and tensors of `gguf`.
fn copy_of<'a>(gguf: &Gguf, data: &'a [Bytes]) -> GgufWriter<'a> {
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| !key.starts_with("split.")) {
        writer.set(key, value.clone()).expect("a valid entry");
    }
    for (tensor, data) in gguf.tensors().iter().zip(data) {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape, data).expect("a valid tensor");
    }
    writer
}

fn data_of(gguf: &Gguf) -> Vec<Bytes> {
    gguf.tensors().iter().filter_map(|t| gguf.tensor(&t.name)).map(|t| t.data).collect()
}

#[test]
fn a_renamed_tensor_is_found_by_its_new_name() {
    let mut gguf = Gguf::open(fixture("all-types.gguf")).expect("a golden file");
    let names: Vec<_> = gguf.tensors().iter().map(|tensor| tensor.name.clone()).collect();
    let (first, second) = (&names[0], &names[1]);
    let data = gguf.tensor(first).expect("a tensor").data;
    // A name that another tensor has is not given twice.
    assert!(!gguf.rename_tensor(first, second) && !gguf.rename_tensor("none", "new"));
    assert!(gguf.rename_tensor(first, "new"));
    assert!(gguf.tensor(first).is_none());
    let renamed = gguf.tensor("new").expect("a tensor");
    assert_eq!((renamed.name.as_str(), &renamed.data[..]), ("new", &data[..]));
    assert_eq!(gguf.tensors()[0].name, "new");
}

#[test]
fn a_copy_of_a_golden_gguf_has_the_same_bytes() {
    for name in ["all-types.gguf", "align-64.gguf"] {
        let golden = Gguf::open(fixture(name)).expect("a golden file");
        let mut bytes = Vec::new();
        copy_of(&golden, &data_of(&golden)).write(&mut bytes).expect("written");
        assert_eq!(bytes, std::fs::read(fixture(name)).expect("a golden file"), "{name}");
    }
}

#[test]
fn a_split_copy_reads_as_the_whole() {
    let golden = Gguf::open(fixture("all-types.gguf")).expect("a golden file");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let check = |name: &str, limits: SplitLimits, expected: &[usize]| {
        let data = data_of(&golden);
        let paths = copy_of(&golden, &data).write_split(dir.path().join(name), limits);
        let paths = paths.expect("written");
        assert_eq!(paths.len(), expected.iter().max().map_or(1, |last| last + 1), "{name}");
        let copy = Gguf::open(paths.last().expect("a file")).expect("a model");
        let shards: Vec<usize> = copy.tensors().iter().map(|t| t.shard).collect();
        assert_eq!(shards, expected, "{name}");
        assert_eq!(copy.metadata().u32("split.tensors.count").expect("u32"), Some(12));
        assert_eq!(copy.metadata().get("t.strs"), golden.metadata().get("t.strs"));
        for tensor in golden.tensors() {
            assert_eq!(copy.tensor(&tensor.name), golden.tensor(&tensor.name), "{name}");
        }
    };
    check("whole", SplitLimits::default(), &[0; 12]);
    let by_five = SplitLimits { max_tensors: Some(5), ..SplitLimits::default() };
    check("by-count", by_five, &[0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]);
    let by_bytes = SplitLimits { max_bytes: Some(256), ..SplitLimits::default() };
    check("by-bytes", by_bytes, &[0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 3, 4]);
}

#[test]
fn every_value_comes_back() {
    let values: [Value; 16] = [
        1u8.into(),
        (-1i8).into(),
        2u16.into(),
        (-2i16).into(),
        3u32.into(),
        (-3i32).into(),
        0.5f32.into(),
        false.into(),
        "".into(),
        4u64.into(),
        (-4i64).into(),
        0.25f64.into(),
        Array::from(&[1.5f64, -1.5][..]).into(),
        Array::from(&[u64::MAX][..]).into(),
        Array::from_strs(["", "é"]).into(),
        Array::from_strs::<&str>([]).into(),
    ];
    let mut writer = GgufWriter::new();
    for (i, value) in values.iter().enumerate() {
        writer.set(&format!("k{i}"), value.clone()).expect("a valid entry");
    }
    let mut bytes = Vec::new();
    writer.write(&mut bytes).expect("written");
    let gguf = Gguf::from_bytes("memory", Bytes::from(bytes)).expect("a file");
    let back: Vec<Value> = gguf.metadata().iter().map(|(_, value)| value.clone()).collect();
    assert_eq!(back, values);
}

#[test]
fn data_can_be_produced_while_writing() {
    let write = |n: usize| {
        let mut writer = GgufWriter::new();
        writer
            .tensor_with("x", TensorType::I8, &[70], move |out| {
                (0..n).try_for_each(|i| out.write_all(&[i as u8]))
            })
            .expect("a valid tensor");
        let mut bytes = Vec::new();
        writer.write(&mut bytes).map(|()| bytes)
    };
    let gguf = Gguf::from_bytes("memory", Bytes::from(write(70).expect("written")));
    let x = gguf.expect("a file").tensor("x").expect("it was written");
    assert_eq!((x.data.len(), x.data[69]), (70, 69));
    for n in [69, 71] {
        let error = write(n).expect_err("a wrong length").to_string();
        assert_eq!(error, format!("cannot write 'x': expected 70 bytes of data, found {n}"));
    }

    let mut writer = GgufWriter::new();
    let fail = |_: &mut dyn io::Write| Err(io::Error::other("disk on fire"));
    writer.tensor_with("x", TensorType::I8, &[1], fail).expect("a valid tensor");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("x.gguf");
    let error = writer.write_file(&path).expect_err("a failing source").to_string();
    assert_eq!(error, "cannot write 'x': disk on fire");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0);
}

#[test]
fn writers_refuse_what_files_cannot_hold() {
    let check = |result: Result<(), Error>, text: &str| {
        let error = result.expect_err(text).to_string();
        assert_eq!(error, format!("cannot write {text}"));
    };
    let data = [0u8; 64];
    let mut w = GgufWriter::new();
    w.set("k", 1u32).expect("a valid entry");
    w.tensor("t", TensorType::I8, &[1], &data[..1]).expect("a valid tensor");
    check(w.set("k", 2u32), "'k': expected a key once, found it twice");
    check(w.set("", 2u32), "'': expected a key of 1 to 65535 bytes, found 0 bytes");
    check(
        w.set("general.alignment", 24u32),
        "'general.alignment': expected a u32 power of two, found the u32 24",
    );
    check(w.set("split.no", 0u16), "'split.no': expected no key of a split model, found one");
    check(
        w.tensor("t", TensorType::I8, &[1], &data[..1]),
        "'t': expected a name once, found it twice",
    );
    check(
        w.tensor("u", TensorType::Bool, &[1], &data[..1]),
        "'u': expected a type that GGUF holds, found BOOL",
    );
    check(
        w.tensor("u", BlockType::Q8_0, &[2, 31], &data),
        "'u': expected rows of whole Q8_0 blocks of 32, found shape [2, 31]",
    );
    check(
        w.tensor("u", TensorType::F32, &[4, 4], &data[..63]),
        "'u': expected 64 bytes for F32 of shape [4, 4], found 63",
    );
    check(
        w.tensor("u", TensorType::I8, &[1; 5], &data[..1]),
        "'u': expected at most 4 dimensions, found 5",
    );

    let mut w = SafeTensorsWriter::new();
    check(
        w.tensor("u", BlockType::Q8_0.into(), &[32], &data[..34]),
        "'u': expected a type that safetensors holds, found Q8_0",
    );
    check(
        w.tensor("__metadata__", TensorType::U8, &[1], &data[..1]),
        "'__metadata__': expected the name of a tensor, found a reserved key",
    );
}

#[test]
fn safetensors_come_back_single_and_sharded() {
    let golden = SafeTensors::open(fixture("dtypes.safetensors")).expect("a golden file");
    let data: Vec<Bytes> =
        golden.tensors().iter().filter_map(|t| golden.tensor(&t.name)).map(|t| t.data).collect();
    let copy = || {
        let mut writer = SafeTensorsWriter::new();
        for (key, text) in golden.metadata() {
            writer.set(key, text).expect("a valid entry");
        }
        for (t, data) in golden.tensors().iter().zip(&data) {
            writer.tensor(&t.name, t.ty, &t.shape, data).expect("a valid tensor");
        }
        writer
    };
    for (max_bytes, n_files) in [(u64::MAX, 1), (100, 3)] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        copy().write_sharded(dir.path(), max_bytes).expect("written");
        let back = SafeTensors::open(dir.path()).expect("a model");
        assert_eq!(back.shard_paths().count(), n_files);
        assert_eq!(back.metadata(), golden.metadata());
        assert_eq!(back.tensors().len(), golden.tensors().len());
        for t in golden.tensors() {
            assert_eq!(back.tensor(&t.name), golden.tensor(&t.name), "{}", t.name);
        }
        for t in back.tensors().iter().filter(|t| t.n_bytes > 0) {
            assert_eq!(t.offset() % t.ty.block_bytes(), 0, "{}", t.name);
        }
    }
    let (mut one, mut two) = (Vec::new(), Vec::new());
    copy().write(&mut one).expect("written");
    copy().write(&mut two).expect("written");
    assert_eq!(one, two);
}
