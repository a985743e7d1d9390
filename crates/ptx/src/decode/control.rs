//! Branches, exits, calls, fences, and instructions without effect in the interpreter.

use crate::Error;
use crate::program::Op;
use crate::syntax::{Operand, Statement};

use super::operands::{Symbol, take};
use super::types::{Opcode, Type};
use super::{Decoded, Decoder, END, Scope, Unsupported};

/// The device function that `assert` calls.
const ASSERT: &str = "__assertfail";

impl<'a> Decoder<'a> {
    pub(super) fn control(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Option<Decoded> {
        Some(match opcode.base {
            "bra" => self.branch(opcode, args),
            "brx" => self.branch_table(opcode, args),
            "ret" => {
                opcode.take("uni");
                self.targets.push(END.to_owned());
                Ok(Op::Branch(0))
            }
            "exit" => Ok(Op::Exit),
            "trap" => Ok(Op::Trap("the kernel ran into `trap`")),
            "membar" | "fence" => self.fence(opcode),
            "griddepcontrol" => {
                // Kernels run one after another, so the kernel that is waited for has always ended. Accesses before the
                // wait are checked.
                match opcode.take_of(&["wait", "launch_dependents"]) {
                    Some("wait") => Ok(Op::WaitForLaunch),
                    Some(_) => Ok(Op::Nothing),
                    None => {
                        Err(Unsupported("`.wait` or `.launch_dependents` is missing".to_owned()))
                    }
                }
            }
            "nanosleep" => {
                let ty = opcode.type_of();
                ty.and_then(|ty| self.src(take::<1>(args)?.first().expect("one operand"), ty))
                    .map(|_| Op::Nothing)
            }
            "setmaxnreg" => {
                opcode.take_of(&["inc", "dec"]);
                let known = opcode.take("sync") && opcode.take("aligned") && opcode.take("u32");
                if known {
                    Ok(Op::Nothing)
                } else {
                    Err(Unsupported("a modifier is missing".to_owned()))
                }
            }
            _ => return None,
        })
    }

    fn branch(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        opcode.take("uni");
        let [Operand::Name(label)] = args else {
            return Err(Unsupported("a label is expected".to_owned()));
        };
        self.targets.push(label.clone());
        Ok(Op::Branch(0))
    }

    fn branch_table(&mut self, opcode: &mut Opcode<'_>, args: &[Operand]) -> Decoded {
        opcode.take("uni");
        let is_index = opcode.take("idx");
        let (true, [index, Operand::Name(table)]) = (is_index, args) else {
            return Err(Unsupported("an index and a table are expected".to_owned()));
        };
        let index = self.src(index, Type::U32)?;
        let labels = self.scopes.iter().rev().find_map(|s| s.tables.get(table)).cloned();
        let labels = labels.ok_or_else(|| Unsupported(format!("there is no table `{table}`")))?;
        let places = vec![0; labels.len()].into();
        self.targets = labels;
        Ok(Op::BranchTable(index, places))
    }

    fn fence(&mut self, opcode: &mut Opcode<'_>) -> Decoded {
        if opcode.base == "membar" {
            let scope = opcode.take_of(&["cta", "gl", "sys"]);
            return match scope {
                Some(scope) => Ok(Op::Fence(scope != "cta")),
                None => Err(Unsupported("a scope is missing".to_owned())),
            };
        }
        if let Some(fence) = Self::fence_of_copies(opcode) {
            return fence;
        }
        opcode.take_of(&["sc", "acq_rel", "acquire", "release"]);
        match opcode.take_of(&["cta", "gpu", "sys"]) {
            Some(scope) => Ok(Op::Fence(scope != "cta")),
            None => Err(Unsupported("a scope is missing".to_owned())),
        }
    }

    /// Inlines the body of a device function at its call.
    pub(super) fn call(&mut self, statement: &Statement) -> Result<(), Error> {
        let unsupported = |message: String| Error::Unsupported {
            line: statement.line,
            opcode: statement.opcode.clone(),
            message,
        };
        let (returns, name, args): (&[Operand], _, &[Operand]) = match &statement.operands[..] {
            [Operand::List(returns), Operand::Name(name), Operand::List(args)] => {
                (returns, name, args)
            }
            [Operand::List(returns), Operand::Name(name)] => (returns, name, &[]),
            [Operand::Name(name), Operand::List(args)] => (&[], name, args),
            [Operand::Name(name)] => (&[], name, &[]),
            _ => return Err(unsupported("only calls of functions by name are known".to_owned())),
        };
        if name == ASSERT {
            self.push(statement.line, None, Op::Trap("an assertion of the kernel does not hold"));
            return Ok(());
        }
        let Some(&function) = self.functions.get(name.as_str()) else {
            return Err(unsupported(format!("there is no function `{name}`")));
        };
        if function.body.is_none() {
            return Err(unsupported(format!("`{name}` is a function of the device's library")));
        }
        if self.calls.iter().any(|c| c == name) {
            return Err(unsupported(format!("`{name}` calls itself, which is not supported")));
        }
        if (returns.len(), args.len()) != (function.returns.len(), function.params.len()) {
            return Err(unsupported(format!("`{name}` has another number of parameters")));
        }
        let mut scope = Scope::default();
        let given = returns.iter().chain(args);
        for (arg, param) in given.zip(function.returns.iter().chain(&function.params)) {
            let Operand::Name(arg) = arg else {
                return Err(unsupported("an argument that is no variable".to_owned()));
            };
            match self.symbol(arg) {
                Ok(symbol @ Symbol::Local(_)) => scope.symbols.insert(param.name.clone(), symbol),
                _ => {
                    return Err(unsupported(format!(
                        "the argument `{arg}` is no parameter variable"
                    )));
                }
            };
        }
        self.reads.clear();
        self.uses.clear();
        self.function(function, scope)
    }
}
