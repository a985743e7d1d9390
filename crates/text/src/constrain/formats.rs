//! Formats of strings beyond those that the library knows, as regular expressions: of OpenAPI, of
//! JSON Schema and of pydantic.

/// The formats that have an expression here.
pub(super) const NAMES: &[&str] = &[
    "uri-reference",
    "json-pointer",
    "relative-json-pointer",
    "ipvanyaddress",
    "ipv4interface",
    "ipv6interface",
    "ipvanyinterface",
    "ipv4network",
    "ipv6network",
    "ipvanynetwork",
    "uuid1",
    "uuid3",
    "uuid4",
    "uuid5",
    "uuid6",
    "uuid7",
    "uuid8",
    "decimal",
    "byte",
    "base64",
    "base64url",
];

const BYTE: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
/// A part of an IPv6 address.
const H: &str = "[0-9a-fA-F]{1,4}";
/// A character of a segment of a URI's path, and one of its first segment if nothing is before that.
const PCHAR: &str = "(?:[A-Za-z0-9\\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})";
const PCHAR_NO_COLON: &str = "(?:[A-Za-z0-9\\-._~!$&'()*+,;=@]|%[0-9A-Fa-f]{2})";

/// The expression of a format, which a whole string has to match.
pub(super) fn pattern(format: &str) -> Option<String> {
    let (four, six) = (ipv4(), ipv6());
    let (four_with, six_with) = (
        format!("(?:{four})(?:/(?:3[0-2]|[12]?[0-9]))?"),
        format!("(?:{six})(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"),
    );
    let expression = match format {
        "uri-reference" => uri_reference(),
        // RFC 6901.
        "json-pointer" => "(?:/(?:[^~/]|~[01])*)*".to_owned(),
        "relative-json-pointer" => "(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)".to_owned(),
        "ipvanyaddress" => format!("{four}|{six}"),
        "ipv4interface" | "ipv4network" => four_with,
        "ipv6interface" | "ipv6network" => six_with,
        "ipvanyinterface" | "ipvanynetwork" => format!("{four_with}|{six_with}"),
        "decimal" => "-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?".to_owned(),
        // RFC 4648, sections 4 and 5, with padding.
        "byte" | "base64" => base64("[A-Za-z0-9+/]"),
        "base64url" => base64("[A-Za-z0-9_\\-]"),
        // RFC 9562.
        _ => match format.strip_prefix("uuid")? {
            version @ ("1" | "3" | "4" | "5" | "6" | "7" | "8") => format!(
                "[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{version}[0-9a-fA-F]{{3}}-\
                 [89abAB][0-9a-fA-F]{{3}}-[0-9a-fA-F]{{12}}"
            ),
            _ => return None,
        },
    };
    Some(format!("^(?:{expression})$"))
}

fn ipv4() -> String {
    format!("(?:{BYTE}\\.){{3}}{BYTE}")
}

/// RFC 4291, section 2.2, without the form that ends with an IPv4 address.
fn ipv6() -> String {
    let mut all = vec![format!("(?:{H}:){{7}}{H}"), format!("(?:{H}:){{1,7}}:")];
    all.extend((1..=6).map(|n| format!("(?:{H}:){{1,{}}}(?::{H}){{1,{n}}}", 7 - n)));
    all.push(format!(":(?:(?::{H}){{1,7}}|:)"));
    all.join("|")
}

fn base64(letter: &str) -> String {
    format!("(?:{letter}{{4}})*(?:{letter}{{2}}==|{letter}{{3}}=)?")
}

/// RFC 3986, section 4.1.
fn uri_reference() -> String {
    let six = ipv6();
    let authority = format!(
        "//(?:(?:[A-Za-z0-9\\-._~!$&'()*+,;=:]|%[0-9A-Fa-f]{{2}})*@)?\
         (?:\\[(?:{six})\\]|(?:[A-Za-z0-9\\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{{2}})*)(?::[0-9]*)?"
    );
    let behind = format!("(?:/{PCHAR}*)*");
    let rooted = format!("{authority}{behind}|/(?:{PCHAR}+{behind})?");
    format!(
        "(?:[A-Za-z][A-Za-z0-9+.\\-]*:(?:{rooted}|{PCHAR}+{behind}|)|{rooted}|\
         {PCHAR_NO_COLON}+{behind}|)(?:\\?(?:{PCHAR}|[/?])*)?(?:#(?:{PCHAR}|[/?])*)?"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_match_what_they_name() {
        let check = |format: &str, good: &[&str], bad: &[&str]| {
            let expression = pattern(format).expect("an expression");
            let expression = fancy_regex::Regex::new(&expression).expect("it is valid");
            let matches = |text: &&str| expression.is_match(text).expect("a short text");
            assert_eq!(good.iter().find(|text| !matches(text)), None, "{format}");
            assert_eq!(bad.iter().find(|text| matches(text)), None, "{format}");
        };
        check(
            "uri-reference",
            &[
                "",
                "a/b?c#d",
                "http://u@[::1]:80/x%20y",
                "//h",
                "../a",
                "?q",
                "#",
                "mailto:a@b",
                "/",
            ],
            &["a b", "1:2", "http://[::1", "%2", "a\\b", "a#b#c"],
        );
        check("json-pointer", &["", "/", "/a~1b/~0/é"], &["a", "/~2", "/~"]);
        check("relative-json-pointer", &["0", "12#", "1/a~0"], &["", "01", "/a", "1#/a"]);
        check(
            "ipvanyaddress",
            &["0.0.0.0", "255.249.10.1", "::", "::1", "1::", "a:b:c:d:e:f:1:2", "1:2::7:8"],
            &[
                "256.0.0.1",
                "01.1.1.1",
                "1.1.1",
                ":::",
                "1:2",
                "1::2::3",
                "12345::",
                "1:2:3:4:5:6:7::8",
            ],
        );
        check("ipv4network", &["10.0.0.0/8", "1.1.1.1", "1.1.1.1/32"], &["1.1.1.1/33", "::/8"]);
        check("ipvanyinterface", &["::1/128", "1.1.1.1/0"], &["::1/129", "1.1.1.1/"]);
        check(
            "uuid4",
            &["01234567-89ab-4def-8123-456789ABCDEF"],
            &["01234567-89ab-1def-8123-456789abcdef", "01234567-89ab-4def-c123-456789abcdef"],
        );
        check(
            "uuid7",
            &["01234567-89ab-7def-b123-456789abcdef"],
            &["0123456789ab7defb123456789abcdef"],
        );
        check("decimal", &["0", "-1.50", "10"], &["", "01", "1.", ".5", "1e5"]);
        for base64 in ["byte", "base64"] {
            check(base64, &["", "aGk=", "aA==", "ab+/"], &["a", "ab-_", "aA=", "aA==aA=="]);
        }
        check("base64url", &["ab-_", "aA=="], &["ab+/", "aA"]);
        assert_eq!(pattern("uuid2"), None);
        assert!(NAMES.iter().all(|format| pattern(format).is_some()));
    }
}
