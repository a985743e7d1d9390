//! Parses tokens to statements, variables and functions.

use super::forms::Forms;
use super::lexer::{Token, tokens};
use super::tree::{
    Body, Function, Global, Initial, Item, Number, Operand, Param, Sample, Statement, Tree,
    Variable,
};
use crate::Error;

/// The maximum size of a variable, which bounds allocations for malformed input.
const MAX_BYTES: usize = 1 << 30;

/// The maximum number of registers in a range.
const MAX_REGISTERS: u32 = 1 << 20;

/// Parses a module.
///
/// # Errors
///
/// [`Error::Syntax`] with the line that violates PTX's grammar.
pub(crate) fn parse(text: &str) -> Result<Tree, Error> {
    let tokens = tokens(text, 1)?;
    let mut parser = Parser { text, tokens: &tokens, at: 0, forms: Forms::default() };
    let mut tree = Tree::default();
    while parser.at < tokens.len() {
        parser.module_item(&mut tree)?;
    }
    Ok(tree)
}

/// Parses the body of a function of the module `text`.
///
/// # Errors
///
/// As [`parse`].
pub(crate) fn body(text: &str, body: &Body) -> Result<Vec<Item>, Error> {
    let tokens = tokens(&text[body.text.clone()], body.line)?;
    Parser { text, tokens: &tokens, at: 0, forms: Forms::default() }.body()
}

pub(super) struct Parser<'a> {
    text: &'a str,
    pub(super) tokens: &'a [Token<'a>],
    pub(super) at: usize,
    pub(super) forms: Forms,
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", |t| t.text)
    }

    pub(super) fn line(&self) -> u32 {
        let last = self.tokens.last();
        self.tokens.get(self.at).or(last).map_or(1, |t| t.line)
    }

    pub(super) fn error<T>(&self, message: impl Into<String>) -> Result<T, Error> {
        Err(Error::Syntax { line: self.line(), message: message.into() })
    }

    pub(super) fn next(&mut self) -> Result<&'a str, Error> {
        let Some(token) = self.tokens.get(self.at) else {
            return self.error("the module ends inside of a statement");
        };
        self.at += 1;
        Ok(token.text)
    }

    fn eat(&mut self, text: &str) -> bool {
        let hit = self.peek() == text;
        self.at += usize::from(hit);
        hit
    }

    fn expect(&mut self, text: &str) -> Result<(), Error> {
        if self.eat(text) {
            return Ok(());
        }
        self.error(format!("expected `{text}`, found `{}`", self.peek()))
    }

    fn name(&mut self) -> Result<&'a str, Error> {
        let name = self.peek();
        if name.starts_with(|c: char| c.is_ascii_alphabetic() || "_$%".contains(c)) {
            return self.next();
        }
        self.error(format!("expected a name, found `{name}`"))
    }

    fn module_item(&mut self, tree: &mut Tree) -> Result<(), Error> {
        let line = self.line();
        match self.peek() {
            ".version" | ".target" | ".address_size" | ".file" => {
                self.directive_line(line);
                Ok(())
            }
            ".section" => {
                while !matches!(self.next()?, "}") {}
                Ok(())
            }
            _ => {
                while matches!(self.peek(), ".visible" | ".extern" | ".weak" | ".common") {
                    self.at += 1;
                }
                match self.peek() {
                    ".entry" | ".func" => {
                        let function = self.function()?;
                        tree.functions.push(function);
                        Ok(())
                    }
                    ".global" | ".const" | ".shared" => {
                        let space = space(self.next()?).unwrap_or("global");
                        let globals = self.variables(space)?;
                        tree.globals.extend(globals);
                        Ok(())
                    }
                    other => self.error(format!("`{other}` is no known item of a module")),
                }
            }
        }
    }

    /// Skips a directive that ends with its line.
    pub(super) fn directive_line(&mut self, line: u32) {
        while self.tokens.get(self.at).is_some_and(|t| t.line == line) {
            self.at += 1;
        }
    }

    fn function(&mut self) -> Result<Function, Error> {
        let line = self.line();
        let is_entry = self.next()? == ".entry";
        while matches!(self.peek(), ".noreturn") {
            self.at += 1;
        }
        let returns = if self.peek() == "(" { self.params()? } else { Vec::new() };
        let name = self.name()?.to_owned();
        let params = if self.peek() == "(" { self.params()? } else { Vec::new() };
        let mut threads = None;
        loop {
            match self.peek() {
                word @ (".maxntid" | ".reqntid") => {
                    self.at += 1;
                    threads = Some((self.three()?, word == ".reqntid"));
                }
                ".minnctapersm" | ".maxnctapersm" | ".maxnreg" => {
                    self.at += 1;
                    self.integer()?;
                }
                ".noreturn" => self.at += 1,
                ".pragma" => while !matches!(self.next()?, ";") {},
                ";" => {
                    self.at += 1;
                    return Ok(Function {
                        line,
                        name,
                        is_entry,
                        returns,
                        params,
                        threads,
                        body: None,
                    });
                }
                "{" => break,
                other => {
                    return self.error(format!("`{other}` is no known directive of a function"));
                }
            }
        }
        let (first, line_of_body) = (self.at, self.line());
        let sample = self.sample()?;
        let last = self.tokens[self.at - 1].text;
        let offset = |text: &str| text.as_ptr() as usize - self.text.as_ptr() as usize;
        let range = offset(self.tokens[first].text)..offset(last) + last.len();
        let body = Some(Body { text: range, line: line_of_body, sample });
        Ok(Function { line, name, is_entry, returns, params, threads, body })
    }

    /// Skips a body, and extracts the items that must be checked now.
    fn sample(&mut self) -> Result<Sample, Error> {
        let mut sample = Sample::default();
        let mut items = Vec::new();
        let mut depth = 0;
        loop {
            let start = self.at;
            match self.peek() {
                "" => return self.error("a function's body does not end"),
                "{" => depth += 1,
                "}" => depth -= 1,
                ".loc" => {
                    self.directive_line(self.line());
                    continue;
                }
                word if word.starts_with('.') => {
                    self.body_item(&mut sample.declarations)?;
                    continue;
                }
                _ if self.tokens.get(start + 1).is_some_and(|t| t.text == ":") => {
                    if self.tokens.get(start + 2).is_some_and(|t| t.text == ".branchtargets") {
                        self.body_item(&mut sample.declarations)?;
                    } else {
                        self.at += 2;
                    }
                    continue;
                }
                _ => {
                    let rest = &self.tokens[start..];
                    let len = rest.iter().position(|t| t.text == ";").unwrap_or(rest.len());
                    sample.calls |= rest[..len].iter().any(|t| t.text.starts_with("call"));
                    if self.forms.insert(&rest[..len]) {
                        self.body_item(&mut items)?;
                    } else {
                        self.at = start + len + 1;
                    }
                    continue;
                }
            }
            self.at += 1;
            if depth == 0 {
                break;
            }
        }
        sample.statements.extend(items.into_iter().filter_map(|item| match item {
            Item::Statement(statement) => Some(statement),
            _ => None,
        }));
        Ok(sample)
    }

    fn three(&mut self) -> Result<[u32; 3], Error> {
        let mut found = [1; 3];
        for (i, slot) in found.iter_mut().enumerate() {
            if i > 0 && !self.eat(",") {
                break;
            }
            *slot = self.integer()?.try_into().or_else(|_| self.error("a size out of range"))?;
        }
        Ok(found)
    }

    fn params(&mut self) -> Result<Vec<Param>, Error> {
        self.expect("(")?;
        let mut params = Vec::new();
        while !self.eat(")") {
            match self.next()? {
                ".param" => {}
                ".reg" => return self.error("parameters in registers are not supported"),
                other => return self.error(format!("expected `.param`, found `{other}`")),
            }
            let variable = self.variable("param")?.0;
            let Variable { name, align, bytes, .. } = variable;
            params.push(Param { name, align, bytes });
            self.eat(",");
        }
        Ok(params)
    }

    /// The rest of a declaration after its space, up to the name and size. Also returns the bytes per element.
    fn variable(&mut self, space: &'static str) -> Result<(Variable, usize), Error> {
        let line = self.line();
        let mut align = None;
        let mut element = None;
        let mut lanes = 1;
        while self.peek().starts_with('.') {
            match self.next()? {
                ".align" => align = Some(self.size()?),
                ".ptr" => {
                    if matches!(self.peek(), ".global" | ".shared" | ".local" | ".const") {
                        self.at += 1;
                    }
                    if self.eat(".align") {
                        self.size()?;
                    }
                }
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                word => match type_bytes(word) {
                    Some(bytes) => element = Some(bytes),
                    None => return self.error(format!("`{word}` is not supported of a variable")),
                },
            }
        }
        let Some(element) = element else { return self.error("a variable without a type") };
        let element = element * lanes;
        let name = self.name()?.to_owned();
        let mut bytes = element;
        let mut unsized_array = false;
        while self.eat("[") {
            if self.eat("]") {
                unsized_array = true;
                bytes = 0;
                continue;
            }
            let n = self.size()?;
            bytes = bytes
                .checked_mul(n)
                .filter(|&b| b <= MAX_BYTES)
                .map_or_else(|| self.error("a variable that is too large"), Ok)?;
            self.expect("]")?;
        }
        let align = align.unwrap_or(element);
        if !align.is_power_of_two() {
            return self.error(format!("an alignment of {align}"));
        }
        Ok((Variable { line, space, name, align, bytes, unsized_array }, element))
    }

    fn variables(&mut self, space: &'static str) -> Result<Vec<Global>, Error> {
        let (mut variable, element) = self.variable(space)?;
        let mut initial = Vec::new();
        if self.eat("=") {
            self.initialiser(&mut initial)?;
            if variable.unsized_array {
                variable.unsized_array = false;
                variable.bytes = initial.len() * element;
            }
            if initial.len() * element > variable.bytes {
                return self.error(format!("`{}` has more values than room", variable.name));
            }
        }
        self.expect(";")?;
        Ok(vec![Global { variable, element, initial }])
    }

    fn initialiser(&mut self, found: &mut Vec<Initial>) -> Result<(), Error> {
        if self.eat("{") {
            while !self.eat("}") {
                self.initialiser(found)?;
                self.eat(",");
            }
            return Ok(());
        }
        let first = self.peek();
        if first.starts_with(|c: char| c.is_ascii_digit()) || first == "-" {
            found.push(Initial::Number(self.number()?));
            return Ok(());
        }
        let mut name = self.name()?;
        let wrapped = name == "generic" && self.eat("(");
        if wrapped {
            name = self.name()?;
            self.expect(")")?;
        }
        let offset = if self.eat("+") { self.signed()? } else { 0 };
        found.push(Initial::Address(name.to_owned(), offset));
        Ok(())
    }

    fn body(&mut self) -> Result<Vec<Item>, Error> {
        self.expect("{")?;
        let mut items = Vec::new();
        let mut depth = 1;
        while depth > 0 {
            match self.peek() {
                "" => return self.error("a function's body does not end"),
                "{" => {
                    depth += 1;
                    items.push(Item::Open);
                    self.at += 1;
                }
                "}" => {
                    depth -= 1;
                    if depth > 0 {
                        items.push(Item::Close);
                    }
                    self.at += 1;
                }
                _ => self.body_item(&mut items)?,
            }
        }
        Ok(items)
    }

    /// Parses a declaration, directive, label or statement of a body.
    pub(super) fn body_item(&mut self, items: &mut Vec<Item>) -> Result<(), Error> {
        let line = self.line();
        match self.peek() {
            ";" => self.at += 1,
            ".reg" => self.registers(items)?,
            ".shared" | ".local" | ".param" | ".const" | ".global" => {
                let space = space(self.next()?).unwrap_or("local");
                let globals = self.variables(space)?;
                for global in globals {
                    if !global.initial.is_empty() || matches!(space, "const" | "global") {
                        return self.error("variables of functions cannot be initialised here");
                    }
                    items.push(Item::Variable(global.variable));
                }
            }
            ".pragma" => while !matches!(self.next()?, ";") {},
            ".loc" => self.directive_line(line),
            word if word.starts_with('.') => {
                return self.error(format!("`{word}` is no known directive of a body"));
            }
            _ => self.statement(items)?,
        }
        Ok(())
    }

    fn registers(&mut self, items: &mut Vec<Item>) -> Result<(), Error> {
        let line = self.line();
        self.at += 1;
        let kind = self.next()?;
        if matches!(kind, ".v2" | ".v4") {
            return self.error("vectors of registers by name are not supported");
        }
        loop {
            let name = self.name()?.to_owned();
            let mut count = None;
            if self.eat("<") {
                let n = self.integer()?;
                let n = u32::try_from(n).ok().filter(|&n| n <= MAX_REGISTERS);
                let Some(n) = n else {
                    return self.error("a range of registers that is too large");
                };
                count = Some(n);
                self.expect(">")?;
            }
            items.push(Item::Registers(line, kind.trim_start_matches('.').to_owned(), name, count));
            if !self.eat(",") {
                break;
            }
        }
        self.expect(";")
    }

    fn statement(&mut self, items: &mut Vec<Item>) -> Result<(), Error> {
        let line = self.line();
        let is_label = self.tokens.get(self.at + 1).is_some_and(|t| t.text == ":");
        if is_label {
            let name = self.name()?.to_owned();
            self.at += 1;
            if self.eat(".branchtargets") {
                let mut targets = Vec::new();
                loop {
                    targets.push(self.name()?.to_owned());
                    if !self.eat(",") {
                        break;
                    }
                }
                self.expect(";")?;
                items.push(Item::Targets(name, targets));
            } else {
                items.push(Item::Label(line, name));
            }
            return Ok(());
        }
        let mut guard = None;
        if self.eat("@") {
            let negated = self.eat("!");
            guard = Some((self.name()?.to_owned(), negated));
        }
        let opcode = self.next()?;
        if !opcode.starts_with(|c: char| c.is_ascii_lowercase()) {
            self.at -= 1;
            return self.error(format!("expected an instruction, found `{opcode}`"));
        }
        let mut operands = Vec::new();
        while !self.eat(";") {
            operands.push(self.operand()?);
            if !self.eat(",") && self.peek() != ";" {
                return self.error(format!("expected `,` or `;`, found `{}`", self.peek()));
            }
        }
        let opcode = opcode.to_owned();
        items.push(Item::Statement(Statement { line, guard, opcode, operands }));
        Ok(())
    }

    fn operand(&mut self) -> Result<Operand, Error> {
        match self.peek() {
            "[" => {
                self.at += 1;
                let starts_with_digit = |t: &str| t.starts_with(|c: char| c.is_ascii_digit());
                let base = if starts_with_digit(self.peek()) || self.peek() == "-" {
                    None
                } else {
                    Some(self.name()?.to_owned())
                };
                let mut offset = 0;
                if base.is_none() || self.eat("+") || self.peek() == "-" {
                    offset = self.signed()?;
                }
                self.expect("]")?;
                Ok(Operand::Address(base, offset))
            }
            "{" => Ok(Operand::Vector(self.list("{", "}")?)),
            "(" => Ok(Operand::List(self.list("(", ")")?)),
            "!" => {
                self.at += 1;
                Ok(Operand::Not(self.name()?.to_owned()))
            }
            word if word == "-" || word.starts_with(|c: char| c.is_ascii_digit()) => {
                Ok(Operand::Number(self.number()?))
            }
            _ => {
                let name = self.name()?.to_owned();
                if self.eat("|") {
                    return Ok(Operand::Pair(name, self.name()?.to_owned()));
                }
                if self.eat("+") {
                    return Ok(Operand::Offset(name, self.signed()?));
                }
                Ok(Operand::Name(name))
            }
        }
    }

    fn list(&mut self, open: &str, close: &str) -> Result<Vec<Operand>, Error> {
        self.expect(open)?;
        let mut found = Vec::new();
        while !self.eat(close) {
            let operand = self.operand()?;
            if matches!(operand, Operand::Vector(_) | Operand::List(_)) {
                return self.error("a list inside of a list");
            }
            found.push(operand);
            if !self.eat(",") && self.peek() != close {
                return self.error(format!("expected `,` or `{close}`, found `{}`", self.peek()));
            }
        }
        Ok(found)
    }

    fn number(&mut self) -> Result<Number, Error> {
        let negative = self.eat("-");
        let word = self.peek();
        let found = number(word).map(|n| match n {
            Number::Integer(n) if negative => Number::Integer(-n),
            Number::F32(bits) if negative => Number::F32(bits ^ 1 << 31),
            Number::F64(bits) if negative => Number::F64(bits ^ 1 << 63),
            n => n,
        });
        let Some(found) = found else { return self.error(format!("`{word}` is no number")) };
        self.at += 1;
        Ok(found)
    }

    fn integer(&mut self) -> Result<i128, Error> {
        match self.number()? {
            Number::Integer(n) => Ok(n),
            _ => self.error("expected an integer"),
        }
    }

    fn signed(&mut self) -> Result<i64, Error> {
        let n = self.integer()?;
        n.try_into().or_else(|_| self.error("an offset out of range"))
    }

    fn size(&mut self) -> Result<usize, Error> {
        let n = self.integer()?;
        let n = usize::try_from(n).ok().filter(|&n| n <= MAX_BYTES);
        n.map_or_else(|| self.error("a size out of range"), Ok)
    }
}

fn space(word: &str) -> Option<&'static str> {
    ["shared", "local", "param", "global", "const"].into_iter().find(|s| word[1..] == **s)
}

/// Size of a value of a type such as `.f32`.
fn type_bytes(word: &str) -> Option<usize> {
    Some(match word {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        _ => return None,
    })
}

/// Parses an unsigned number.
fn number(word: &str) -> Option<Number> {
    let lower = word.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0f").filter(|h| h.len() == 8) {
        return u32::from_str_radix(hex, 16).ok().map(Number::F32);
    }
    if let Some(hex) = lower.strip_prefix("0d").filter(|h| h.len() == 16) {
        return u64::from_str_radix(hex, 16).ok().map(Number::F64);
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let integer = |digits: &str, radix| u64::from_str_radix(digits, radix).ok().map(i128::from);
    if let Some(hex) = digits.strip_prefix("0x") {
        return integer(hex, 16).map(Number::Integer);
    }
    if let Some(binary) = digits.strip_prefix("0b") {
        return integer(binary, 2).map(Number::Integer);
    }
    if digits.len() > 1 && digits.starts_with('0') && !digits.contains('.') {
        return integer(&digits[1..], 8).map(Number::Integer);
    }
    integer(digits, 10)
        .map(Number::Integer)
        .or_else(|| lower.parse().ok().map(|x: f64| Number::F64(x.to_bits())))
}
