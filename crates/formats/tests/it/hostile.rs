//! Damages small valid files in every way a table can list, and checks that
//! reading them never panics, never allocates beyond a bound, and ends in an
//! error of one line or in a file whose views are all in range.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use realizar_formats::{
    Array, Bytes, Error, Gguf, SafeTensors, Tensor, TensorInfo, TensorType, Value,
};

/// Counts what the current thread holds, and the most it held.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system allocator unchanged; the counters are plain cells
// of the thread and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.get().wrapping_add(layout.size());
        HELD.set(held);
        // Memory freed on another thread may take the count below zero.
        if isize::try_from(held).is_ok() {
            PEAK.set(PEAK.get().max(held));
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get().wrapping_sub(layout.size()));
        // SAFETY: `ptr` came from `alloc` above with the same layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ALLOC_LIMIT: usize = 1 << 20;

/// Reads `bytes` with `read`, which touches everything it can reach, and
/// checks panics, memory and the error. Returns whether reading succeeded.
fn check(what: &str, bytes: &[u8], read: fn(Bytes) -> Result<(), Error>) -> bool {
    let file = Bytes::from(bytes.to_vec());
    let before = HELD.get();
    PEAK.set(before);
    let result = catch_unwind(AssertUnwindSafe(|| read(file)));
    let peak = PEAK.get() - before;
    assert!(peak < ALLOC_LIMIT + bytes.len(), "{what}: {peak} bytes at most");
    match result {
        Err(_) => panic!("{what}: reading panicked"),
        Ok(Err(error)) => {
            let text = error.to_string();
            assert_eq!(text.lines().count(), 1, "{what}: {text}");
            assert!(text.len() < 2000 && text.starts_with("hostile: "), "{what}: {text}");
            false
        }
        Ok(Ok(())) => true,
    }
}

fn touch_tensors(tensors: &[TensorInfo], tensor: impl Fn(&str) -> Option<Tensor>) {
    for info in tensors {
        let t = tensor(&info.name).expect("a listed tensor");
        assert_eq!(t.data.len(), info.n_bytes);
        if info.ty.is_known() {
            assert_eq!(info.ty.size_of_shape(&info.shape).ok(), Some(info.n_bytes));
        }
        // Elements of an unknown type have bytes, as many as there is room for.
        assert_eq!(info.n_bytes > 0, info.n_elements() > 0);
    }
}

fn touch_array(array: &Array) {
    let mut n = 0;
    for value in array.iter() {
        if let Value::Array(inner) = &value {
            touch_array(inner);
        }
        n += 1;
    }
    assert_eq!(n, array.len());
    if let Some(strs) = array.strs() {
        assert_eq!(strs.iter().count(), array.len());
        assert!((0..strs.len()).all(|i| strs.get_bytes(i).is_some()));
        assert!(strs.iter().enumerate().all(|(i, s)| s == strs.get(i)));
    }
}

fn read_gguf(bytes: Bytes) -> Result<(), Error> {
    let gguf = Gguf::from_bytes("hostile", bytes)?;
    for (key, value) in gguf.metadata().iter() {
        assert_eq!(gguf.metadata().get(key).map(Value::ty), Some(value.ty()));
        if let Value::Array(array) = value {
            touch_array(array);
        }
    }
    touch_tensors(gguf.tensors(), |name| gguf.tensor(name));
    Ok(())
}

fn read_safetensors(bytes: Bytes) -> Result<(), Error> {
    let file = SafeTensors::from_bytes("hostile", bytes)?;
    touch_tensors(file.tensors(), |name| file.tensor(name));
    Ok(())
}

/// A GGUF file put together by hand, with the place of every number in it.
#[derive(Default)]
struct Handmade {
    bytes: Vec<u8>,
    fields: Vec<(&'static str, usize, usize)>, // name, offset, bytes
}

impl Handmade {
    fn u32(&mut self, name: &'static str, x: u32) {
        self.fields.push((name, self.bytes.len(), 4));
        self.bytes.extend(x.to_le_bytes());
    }

    fn u64(&mut self, name: &'static str, x: u64) {
        self.fields.push((name, self.bytes.len(), 8));
        self.bytes.extend(x.to_le_bytes());
    }

    fn str(&mut self, name: &'static str, s: &str) {
        self.u64(name, s.len() as u64);
        self.bytes.extend(s.as_bytes());
    }

    fn tensor(&mut self, name: &str, dims: &[u64], id: u32, offset: u64) {
        self.str("tensor name length", name);
        self.u32("number of dimensions", dims.len() as u32);
        for &dim in dims {
            self.u64("dimension", dim);
        }
        self.u32("tensor type", id);
        self.u64("tensor offset", offset);
    }

    /// All that the reader looks at: scalars, a string, arrays of fixed size,
    /// of strings, of bools and of arrays, an alignment, and four tensors.
    fn file() -> (Self, usize) {
        let mut f = Self::default();
        f.u32("magic", u32::from_le_bytes(*b"GGUF"));
        f.u32("version", 3);
        f.u64("tensor count", 4);
        f.u64("metadata count", 6);
        f.str("key length", "general.alignment");
        f.u32("value type", 4);
        f.u32("alignment", 32);
        f.str("key length", "s");
        f.u32("value type", 8);
        f.str("string length", "text");
        f.str("key length", "b");
        f.u32("value type", 7);
        f.bytes.push(1);
        f.str("key length", "words");
        f.u32("value type", 9);
        f.u32("element type", 8);
        f.u64("array length", 20);
        for i in 0..20 {
            f.str("element length", &"ab".repeat(i % 3));
        }
        f.str("key length", "bools");
        f.u32("value type", 9);
        f.u32("element type", 7);
        f.u64("array length", 3);
        f.bytes.extend([1, 0, 1]);
        f.str("key length", "nested");
        f.u32("value type", 9);
        f.u32("element type", 9);
        f.u64("array length", 2);
        for _ in 0..2 {
            f.u32("element type", 5);
            f.u64("array length", 2);
            f.bytes.extend([7; 8]);
        }
        f.tensor("a", &[2, 3], 0, 0);
        f.tensor("b", &[32, 2], 8, 32);
        f.tensor("c", &[], 0, 128);
        f.tensor("d", &[1, 1, 1, 1], 24, 160);
        let header_len = f.bytes.len();
        f.bytes.resize(header_len.next_multiple_of(32) + 192, 0x5a);
        (f, header_len)
    }
}

#[test]
fn damaged_gguf() {
    let (file, header_len) = Handmade::file();
    assert!(check("whole", &file.bytes, read_gguf));

    for i in 0..header_len {
        for (how, byte) in [
            ("flipped", file.bytes[i] ^ 0xff),
            ("one bit flipped", file.bytes[i] ^ 1),
            ("top bit flipped", file.bytes[i] ^ 0x80),
            ("zero", 0),
            ("0xff", 0xff),
        ] {
            let mut bytes = file.bytes.clone();
            bytes[i] = byte;
            check(&format!("byte {i} {how}"), &bytes, read_gguf);
        }
    }
    for len in 0..file.bytes.len() {
        let read = check(&format!("{len} bytes"), &file.bytes[..len], read_gguf);
        // The file ends in padding after the last tensor's one byte.
        let needed = header_len.next_multiple_of(32) + 161;
        assert_eq!(read, len >= needed, "{len} bytes");
    }
    for &(name, at, n) in &file.fields {
        let max = if n == 4 { u64::from(u32::MAX) } else { u64::MAX };
        for value in [0, 1, 2, 3, 5, 9, 31, 33, 1 << 31, max / 32, max / 2, max - 31, max - 7, max]
        {
            let mut bytes = file.bytes.clone();
            bytes[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
            let what = format!("{name} at {at} set to {value}");
            let read = check(&what, &bytes, read_gguf);
            // Any id may be that of a type that is not known yet.
            let huge = value > 1 << 30 && name != "tensor type";
            assert!(!(read && huge), "{what}: was read");
        }
    }
}

#[test]
fn unknown_types_reach_to_the_next_tensor() {
    let (file, header_len) = Handmade::file();
    let data = header_len.next_multiple_of(32);
    let field = |name: &str, nth: usize| {
        let mut fields = file.fields.iter().filter(|f| f.0 == name);
        fields.nth(nth).map(|f| f.1).expect(name)
    };
    let open = |changes: &[(usize, u32)]| {
        let mut bytes = file.bytes.clone();
        for &(at, value) in changes {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        Gguf::from_bytes("hostile", Bytes::from(bytes))
    };
    let ty = |nth| field("tensor type", nth);
    // Tensors a to d lie at 0, 32, 128 and 160 of 192 bytes.
    for (nth, name, id, shown, n_bytes) in [
        (0, "a", 43, "type 43", 32),
        (1, "b", 36, "IQ4_NL_4_4", 96),
        (3, "d", 1 << 31, "type 2147483648", 32),
    ] {
        let gguf = open(&[(ty(nth), id)]).unwrap();
        let info = gguf.tensor_info(name).unwrap();
        assert_eq!((info.ty, info.n_bytes), (TensorType::Unknown(id), n_bytes), "{name}");
        assert_eq!(info.ty.to_string(), shown);
        let tensor = gguf.tensor(name).unwrap();
        assert_eq!(tensor.data.len(), n_bytes);
        assert_eq!(tensor.n_elements(), gguf.tensor_info(name).unwrap().n_elements());
    }
    // Two in a row, and one without elements, which bounds nothing.
    let gguf = open(&[(ty(0), 43), (ty(1), 44)]).unwrap();
    assert_eq!(gguf.tensors().iter().map(|t| t.n_bytes).collect::<Vec<_>>(), [32, 96, 4, 1]);
    let gguf = open(&[(ty(0), 43), (field("dimension", 2), 0), (ty(1), 44)]).unwrap();
    assert_eq!(gguf.tensors().iter().map(|t| t.n_bytes).collect::<Vec<_>>(), [128, 0, 4, 1]);

    let error = |changes: &[(usize, u32)]| open(changes).unwrap_err().to_string();
    let offset = |nth| field("tensor offset", nth);
    assert_eq!(
        error(&[(ty(1), 43), (offset(1), 0)]),
        "hostile: tensor 'b': expected data of its own, found data shared with tensor 'a'"
    );
    assert_eq!(
        error(&[(ty(3), 43), (offset(3), 192)]),
        format!(
            "hostile: tensor 'd': expected data within the {} bytes of the file, found none",
            data + 192
        )
    );
    // Both halves of a dimension.
    let dim = field("dimension", 2);
    assert_eq!(
        error(&[(ty(1), 43), (dim + 4, 1 << 31)]),
        "hostile: tensor 'b': expected elements that fit in memory, found shape [2, 9223372036854775840]"
    );
}

#[test]
fn every_pair_of_hostile_dimensions_is_refused() {
    let (file, _) = Handmade::file();
    let dims: Vec<usize> = file.fields.iter().filter(|f| f.0 == "dimension").map(|f| f.1).collect();
    for pair in dims.windows(2) {
        for (x, y) in [(1 << 32, 1 << 32), (u64::MAX, u64::MAX), (0, u64::MAX), (1 << 63, 2)] {
            let mut bytes = file.bytes.clone();
            bytes[pair[0]..pair[0] + 8].copy_from_slice(&u64::to_le_bytes(x));
            bytes[pair[1]..pair[1] + 8].copy_from_slice(&u64::to_le_bytes(y));
            assert!(!check(&format!("dimensions {x} and {y}"), &bytes, read_gguf));
        }
    }
}

#[test]
fn gguf_errors_name_what_is_wrong() {
    let (file, _) = Handmade::file();
    let check = |field: &str, nth: usize, value: u64, text: &str| {
        let &(_, at, n) = file.fields.iter().filter(|f| f.0 == field).nth(nth).expect(field);
        let mut bytes = file.bytes.clone();
        bytes[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
        let error = Gguf::from_bytes("hostile", Bytes::from(bytes)).expect_err(text);
        assert_eq!(error.to_string(), format!("hostile: {text}"));
    };
    check("version", 0, 4, "unsupported GGUF version: expected 2 or 3, found 4");
    check("alignment", 0, 48, "key 'general.alignment': expected a power of two, found 48");
    check("alignment", 0, 0, "key 'general.alignment': expected a power of two, found 0");
    check("value type", 1, 13, "key 's': expected a value type id from 0 to 12, found 13");
    check("number of dimensions", 0, 5, "tensor 'a': expected at most 4 dimensions, found 5");
    check(
        "tensor type",
        1,
        23,
        "tensor 'b': expected rows of whole IQ4_XS blocks of 256, found shape [2, 32]",
    );
    check(
        "dimension",
        2,
        33,
        "tensor 'b': expected rows of whole Q8_0 blocks of 32, found shape [2, 33]",
    );
    check(
        "tensor offset",
        1,
        33,
        "tensor 'b': expected an offset that is a multiple of 32, found 33",
    );
    check(
        "tensor offset",
        1,
        0,
        "tensor 'b': expected data of its own, found data shared with tensor 'a'",
    );
    check(
        "tensor offset",
        3,
        1 << 40,
        "tensor 'd': expected data within the 800 bytes of the file, found 1 bytes at data offset 1099511627776",
    );

    let twice = |from: &[u8], to: &[u8], text: &str| {
        let at = file.bytes.windows(from.len()).position(|w| w == from).expect(text);
        let mut bytes = file.bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        let error = Gguf::from_bytes("hostile", Bytes::from(bytes)).expect_err(text);
        assert_eq!(error.to_string(), format!("hostile: {text}"));
    };
    let name = |c: u8| [1, 0, 0, 0, 0, 0, 0, 0, c];
    twice(&name(b's'), &name(b'b'), "key 'b': expected a key once, found it twice");
    twice(&name(b'd'), &name(b'a'), "tensor 'a': expected a name once, found it twice");
    twice(
        &name(b's'),
        &name(0xff),
        "metadata key 1: expected valid UTF-8, found an invalid byte at 0",
    );
    twice(b"text", b"te\xfft", "key 's': expected valid UTF-8, found an invalid byte at 2");
}

const HEADER: &str = concat!(
    r#"{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"#,
    r#""b":{"dtype":"I8","shape":[8],"data_offsets":[24,32]}}"#,
);

fn safetensors(header: &str) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + 32, 0x5a);
    bytes
}

#[test]
fn damaged_safetensors() {
    let file = safetensors(HEADER);
    assert!(check("whole", &file, read_safetensors));
    for i in 0..8 + HEADER.len() {
        for byte in [file[i] ^ 0xff, file[i] ^ 1, file[i] ^ 0x80, 0, 0xff, b'"', b'9', b'}'] {
            let mut bytes = file.clone();
            bytes[i] = byte;
            check(&format!("byte {i} set to {byte}"), &bytes, read_safetensors);
        }
    }
    for len in 0..file.len() {
        assert!(!check(&format!("{len} bytes"), &file[..len], read_safetensors));
    }
    for len in [0, 1, 7, 100_000_000, 100_000_001, 1 << 62, u64::MAX / 2, u64::MAX - 7, u64::MAX] {
        let mut bytes = file.clone();
        bytes[..8].copy_from_slice(&len.to_le_bytes());
        assert!(!check(&format!("header length {len}"), &bytes, read_safetensors));
    }
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    assert!(!check("deep", &safetensors(&deep), read_safetensors));
}

#[test]
fn safetensors_errors_name_what_is_wrong() {
    let check = |from: &str, to: &str, text: &str| {
        assert!(HEADER.contains(from), "{from}");
        let bytes = safetensors(&HEADER.replacen(from, to, 1));
        assert!(!check(text, &bytes, read_safetensors));
        let error = SafeTensors::from_bytes("hostile", Bytes::from(bytes)).expect_err(text);
        assert!(error.to_string().contains(text), "{to}: {error}");
    };
    check("F32", "F33", "tensor 'a': expected a known element type, found dtype 'F33'");
    check(
        "F32",
        "F16",
        "tensor 'a': expected 12 bytes for F16 of shape [2, 3], found data_offsets [0, 24]",
    );
    check("[2,3]", "[2,4]", "tensor 'a': expected 32 bytes for F32 of shape [2, 4]");
    let many = format!("[{}1]", "1,".repeat(1 << 20));
    check("[2,3]", &many, "header: invalid length 65, expected a shape of at most 64 dimensions");
    check("[2,3]", "[-2,3]", "header: invalid value: integer `-2`");
    check("[2,3]", "[2.5,3]", "header: invalid type: floating point `2.5`");
    check("[2,3]", "[1e99,3]", "header: invalid type: floating point");
    check("[2,3]", "[18446744073709551616,3]", "header: invalid type: floating point");
    check("[2,3]", "[4294967296,4294967296]", "tensor 'a': expected a size that fits in memory");
    check("[2,3]", "[18446744073709551615,0]", "tensor 'a': expected a size that fits in memory");
    check("[0,24]", "[24,0]", "tensor 'a': expected data_offsets within 32 bytes of data");
    check("[0,24]", "[8,32]", "tensor 'a': expected data at 0, where the last ends, found 8");
    check("[24,32]", "[20,28]", "tensor 'b': expected data at 24, where the last ends, found 20");
    check("[24,32]", "[24,18446744073709551615]", "expected data_offsets within 32 bytes");
    check("[24,32]", "[24,32,40]", "header: ");
    check("\"b\"", "\"a\"", "tensor 'a': expected a name once, found it twice");
    check("\"b\"", "\"__metadata__\"", "header: ");
    check("\"k\":\"v\"", "\"k\":\"v\",\"k\":\"w\"", "key 'k': expected a key once, found it twice");
    check("\"k\":\"v\"", "\"k\":1", "header: invalid type: integer `1`");
    check("{\"k\":\"v\"}", "{},\"__metadata__\":{}", "key '__metadata__': expected a key once");
    check("\"dtype\":\"F32\",", "", "header: missing field `dtype`");
    check("\"dtype\":\"F32\",", "\"dtype\":\"F32\",\"dtype\":\"F32\",", "header: duplicate field");
    check(
        ",\"b\":{\"dtype\":\"I8\",\"shape\":[8],\"data_offsets\":[24,32]}",
        "",
        "data length: expected 24 bytes, the sum of the tensors, found 32",
    );
    check("{\"__", " {\"__", "not a safetensors file: expected a header starting with '{'");
}
