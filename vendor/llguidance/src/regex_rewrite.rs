fn class_for(c: char) -> Option<&'static str> {
    match c {
        'd' => Some("0-9"),
        'w' => Some("0-9a-zA-Z_"),
        's' => Some(" \\t\\n\\r\\f\\v"),
        _ => None,
    }
}

/// Make sure given regex can be used inside /.../ in Lark syntax.
/// Also if `use_ascii.contains('d')` replace `\d` with `[0-9]` and `\D` with `[^0-9]`.
/// Similarly for `\w`/`\W` (`[0-9a-zA-Z_]`) and `\s`/`\S` (`[ \t\n\r\f\v]`).
/// For standard Unicode Python3 or Rust regex crate semantics `use_ascii = ""`
/// For JavaScript or JSON Schema semantics `use_ascii = "dw"`
/// For Python2 or byte patters in Python3 semantics `use_ascii = "dws"`
/// More flags may be added in future.
pub fn regex_to_lark(rx: &str, use_ascii: &str) -> String {
    let mut is_q = false;
    let mut res = String::new();
    for c in rx.chars() {
        let prev_q = is_q;
        is_q = false;
        match c {
            // make sure we don't terminate on /
            '/' => res.push_str("\\/"),

            // these are optional, but nice
            '\n' => res.push_str("\\n"),
            '\r' => res.push_str("\\r"),
            '\t' => res.push_str("\\t"),

            '\\' if !prev_q => {
                is_q = true;
            }

            'd' | 'w' | 's' | 'D' | 'W' | 'S' if prev_q => {
                let c2 = c.to_ascii_lowercase();
                if use_ascii.contains(c2) {
                    let class = class_for(c2).unwrap();
                    res.push('[');
                    if c != c2 {
                        res.push('^');
                    }
                    res.push_str(class);
                    res.push(']');
                } else {
                    res.push('\\');
                    res.push(c);
                }
            }

            _ => {
                if prev_q {
                    res.push('\\');
                }
                res.push(c);
            }
        }
    }
    res
}
