//! What a language tells of its code to whoever matches rules against it.

use tree_sitter::Node;

use super::value::Values;

/// An argument of a call, if it has such a one.
pub(super) type Argument<'t> = Option<Node<'t>>;

pub(super) trait Meaning<'t> {
    /// What an expression may come to.
    fn values(&self, node: Node<'t>) -> Values;

    /// An argument of a call by its place, or by its keyword where the language has those.
    fn argument(&self, call: Node<'t>, index: Option<usize>, keyword: Option<&str>)
    -> Argument<'t>;

    /// The full names of what an import statement brings in.
    fn imports(&self, node: Node<'t>) -> Vec<String>;

    /// The modules that a call of this function brings in.
    fn brought(&self, call: Node<'t>, callee: &str) -> Vec<String>;

    /// Whether there was more to find out than time allows.
    fn gave_up(&self) -> bool;
}
