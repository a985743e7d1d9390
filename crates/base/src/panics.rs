//! Panics as values: a part of the work is abandoned, and the rest continues.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `f`; if it panics, the text of the panic. What `f` was changing may be half changed then.
///
/// # Errors
/// If `f` panics.
pub fn caught<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| text(&*payload).to_owned())
}

/// The text of a panic's payload, whatever its type.
pub fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.or_else(|| payload.downcast_ref::<Box<str>>().map(|text| &**text));
    text.unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;

    #[test]
    fn the_text_is_kept_whatever_its_type() {
        assert_eq!(caught(|| 7), Ok(7));
        let check = |f: fn(), want: &str| assert_eq!(caught(f), Err(want.to_owned()));
        check(|| panic!("literal"), "literal");
        check(|| panic!("number {}", std::hint::black_box(3)), "number 3");
        check(|| panic_any("boxed".to_owned().into_boxed_str()), "boxed");
        check(|| panic_any(7), "a panic without a message");
        let missing: Option<u8> = std::hint::black_box(None);
        assert_eq!(caught(|| missing.expect("it is there")), Err("it is there".to_owned()));
    }
}
