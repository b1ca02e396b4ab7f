//! Which names mean what, where: shared by the languages that have scopes.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;

use tree_sitter::Node;

/// How a scope is seen from inside and outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Module,
    Function,
    /// Python: not seen from the functions in it.
    Class,
    /// JavaScript's braces, Python's comprehensions.
    Block,
}

/// One way in which a name gets its value.
#[derive(Clone, Debug)]
pub(super) enum Binding<'t> {
    /// Something of another module, by its full name.
    Import(String),
    /// The value of an expression that stands in a scope.
    Value(Node<'t>, usize),
    /// A property of such a value.
    Member(Node<'t>, usize, String),
    /// One item of such a value.
    Item(Node<'t>, usize, usize),
    /// Any item of such a value.
    Element(Node<'t>, usize),
    /// Such a value added to what the name was.
    Added(Node<'t>, usize),
    /// A function of the program.
    Function,
    /// Something that cannot be known: a parameter, a class.
    Opaque,
}

#[derive(Debug)]
pub(super) struct Scope<'t> {
    pub parent: Option<usize>,
    pub kind: Kind,
    pub range: Range<usize>,
    pub names: HashMap<&'t str, Vec<Binding<'t>>>,
    /// Modules whose every name was brought in.
    pub stars: Vec<String>,
    /// Names that are bound in another scope though they are written here.
    pub elsewhere: HashMap<&'t str, usize>,
}

/// All scopes of a text, outer before inner; the first is the module.
#[derive(Debug)]
pub(super) struct Scopes<'t> {
    pub all: Vec<Scope<'t>>,
}

impl<'t> Scopes<'t> {
    pub(super) fn new(length: usize) -> Self {
        let mut scopes = Self { all: Vec::new() };
        scopes.open(None, Kind::Module, 0..length);
        scopes
    }

    pub(super) fn open(&mut self, parent: Option<usize>, kind: Kind, range: Range<usize>) -> usize {
        self.all.push(Scope {
            parent,
            kind,
            range,
            names: HashMap::new(),
            stars: Vec::new(),
            elsewhere: HashMap::new(),
        });
        self.all.len() - 1
    }

    pub(super) fn bind(&mut self, scope: usize, name: &'t str, binding: Binding<'t>) {
        let scope = self.all[scope].elsewhere.get(name).copied().unwrap_or(scope);
        self.all[scope].names.entry(name).or_default().push(binding);
    }

    /// The innermost scope around a place. `pay` is asked before each step outwards.
    pub(super) fn at(&self, byte: usize, pay: impl Fn() -> bool) -> usize {
        let after = self.all.partition_point(|scope| scope.range.start <= byte);
        let mut scope = after.saturating_sub(1);
        while !self.all[scope].range.contains(&byte) && pay() {
            match self.all[scope].parent {
                Some(parent) => scope = parent,
                None => break,
            }
        }
        scope
    }

    /// The scope that a name is bound in, seen from another.
    pub(super) fn find(&self, from: usize, name: &str, pay: impl Fn() -> bool) -> Option<usize> {
        let mut scope = from;
        loop {
            let one = &self.all[scope];
            let hidden = one.kind == Kind::Class && scope != from;
            if !hidden && one.names.contains_key(name) {
                return Some(scope);
            }
            scope = one.elsewhere.get(name).copied().or(one.parent).filter(|_| pay())?;
        }
    }

    /// The nearest scope outwards, itself included, that is no block.
    pub(super) fn function(&self, from: usize) -> usize {
        let mut scope = from;
        while self.all[scope].kind == Kind::Block {
            match self.all[scope].parent {
                Some(parent) => scope = parent,
                None => break,
            }
        }
        scope
    }
}

/// Steps that may be taken to find out what expressions come to, for one text.
#[derive(Debug)]
pub(super) struct Fuel(Cell<u32>);

/// About a tenth of a second.
const FUEL: u32 = 1 << 20;

impl Fuel {
    pub(super) fn new() -> Self {
        Self(Cell::new(FUEL))
    }

    /// Takes one step, if there are any left.
    pub(super) fn pay(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.0.get() == 0
    }
}

/// The scopes that are open while a tree is walked.
#[derive(Debug)]
pub(super) struct Open(Vec<(usize, usize)>);

impl Open {
    pub(super) fn new() -> Self {
        Self(vec![(0, 0)])
    }

    /// The scope that a node at this depth stands in.
    pub(super) fn at(&mut self, depth: usize) -> usize {
        while self.0.len() > 1 && self.0.last().is_some_and(|(opened, _)| *opened >= depth) {
            self.0.pop();
        }
        self.0.last().map_or(0, |(_, scope)| *scope)
    }

    pub(super) fn push(&mut self, depth: usize, scope: usize) {
        self.0.push((depth, scope));
    }
}
