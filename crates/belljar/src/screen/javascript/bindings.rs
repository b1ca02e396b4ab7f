//! What binds names in JavaScript, and in which scope.

use tree_sitter::Node;

use super::{Javascript, module, normal};
use crate::screen::scopes::{Binding, Kind};

impl<'t> Javascript<'t> {
    /// Notes what a node binds; the answer is the scope that it opens.
    pub(super) fn enter(&mut self, node: Node<'t>, scope: usize) -> Option<usize> {
        let field = |name: &str| node.child_by_field_name(name);
        match node.kind() {
            "import_statement" => self.import(node, scope),
            "variable_declarator" => self.declare(node, scope),
            "assignment_expression" => {
                if let Some((left, right)) = field("left").zip(field("right")) {
                    self.assign(left, right, scope);
                }
            }
            "augmented_assignment_expression" => {
                if let Some((left, right)) = field("left").zip(field("right"))
                    && left.kind() == "identifier"
                {
                    self.assigned.push((self.of(left), scope, Binding::Added(right, scope)));
                }
            }
            "for_in_statement" => {
                let inner = self.scopes.open(Some(scope), Kind::Block, node.byte_range());
                if let Some((left, right)) = field("left").zip(field("right")) {
                    if left.kind() == "identifier" {
                        let binding = Binding::Element(right, scope);
                        self.scopes.bind(inner, self.of(left), binding);
                    } else {
                        self.bind_pattern(left, None, inner);
                    }
                }
                return Some(inner);
            }
            "function_declaration" | "generator_function_declaration" => {
                if let Some(name) = field("name") {
                    self.scopes.bind(scope, self.of(name), Binding::Function);
                }
                return Some(self.open_function(node, scope));
            }
            "function_expression"
            | "generator_function"
            | "arrow_function"
            | "method_definition" => return Some(self.open_function(node, scope)),
            "class_declaration" | "class" => {
                if let Some(name) = field("name") {
                    self.scopes.bind(scope, self.of(name), Binding::Opaque);
                }
            }
            "catch_clause" => {
                let inner = self.scopes.open(Some(scope), Kind::Block, node.byte_range());
                let parameter = field("parameter");
                parameter.into_iter().for_each(|one| self.bind_pattern(one, None, inner));
                return Some(inner);
            }
            "statement_block" | "for_statement" | "switch_body" => {
                return Some(self.scopes.open(Some(scope), Kind::Block, node.byte_range()));
            }
            _ => {}
        }
        None
    }

    fn import(&mut self, node: Node<'t>, scope: usize) {
        let Some(source) = node.child_by_field_name("source") else { return };
        let module = module(&self.string(source));
        let mut left: Vec<_> = node.named_children(&mut node.walk()).collect();
        while let Some(one) = left.pop() {
            match one.kind() {
                "import_clause" | "named_imports" => {
                    left.extend(one.named_children(&mut one.walk()));
                }
                "identifier" => {
                    self.scopes.bind(scope, self.of(one), Binding::Import(module.clone()));
                }
                "namespace_import" => {
                    let name = one.named_child(0).map_or("", |name| self.of(name));
                    self.scopes.bind(scope, name, Binding::Import(module.clone()));
                }
                "import_specifier" => {
                    let name = one.child_by_field_name("name").map_or("", |name| self.of(name));
                    let alias = one.child_by_field_name("alias").map_or(name, |one| self.of(one));
                    let whole = match name {
                        "default" => module.clone(),
                        name => normal(format!("{module}.{name}")),
                    };
                    self.scopes.bind(scope, alias, Binding::Import(whole));
                }
                _ => {}
            }
        }
    }

    fn declare(&mut self, node: Node<'t>, scope: usize) {
        let is_var = node.parent().is_some_and(|above| above.kind() == "variable_declaration");
        let home = if is_var { self.scopes.function(scope) } else { scope };
        let Some(name) = node.child_by_field_name("name") else { return };
        let value = node.child_by_field_name("value").map(|value| (value, scope));
        if name.kind() == "identifier" {
            let binding = value.map_or(Binding::Opaque, |(node, at)| Binding::Value(node, at));
            self.scopes.bind(home, self.of(name), binding);
        } else {
            self.bind_pattern(name, value, home);
        }
    }

    fn assign(&mut self, left: Node<'t>, right: Node<'t>, scope: usize) {
        if left.kind() == "identifier" {
            self.assigned.push((self.of(left), scope, Binding::Value(right, scope)));
        } else if left.kind().ends_with("_pattern") {
            self.bind_pattern(left, Some((right, scope)), scope);
        }
    }

    /// `{a, b: c, d = 1}` and `[a, b]`: the outermost names know what they are taken from.
    fn bind_pattern(&mut self, pattern: Node<'t>, value: Option<(Node<'t>, usize)>, scope: usize) {
        if pattern.kind() == "identifier" {
            self.scopes.bind(scope, self.of(pattern), Binding::Opaque);
            return;
        }
        for (index, part) in pattern.named_children(&mut pattern.walk()).enumerate() {
            let part = part.child_by_field_name("left").unwrap_or(part);
            let (key, target) = match part.kind() {
                "shorthand_property_identifier_pattern" => (self.of(part).to_owned(), part),
                "pair_pattern" => {
                    let key = part.child_by_field_name("key").map(|key| self.key(key));
                    let target = part.child_by_field_name("value").unwrap_or(part);
                    (key.unwrap_or_default(), target.child_by_field_name("left").unwrap_or(target))
                }
                _ => (String::new(), part),
            };
            let plain =
                matches!(target.kind(), "identifier" | "shorthand_property_identifier_pattern");
            let binding = match value {
                Some((node, at)) if plain && !key.is_empty() => Binding::Member(node, at, key),
                Some((node, at)) if plain => Binding::Item(node, at, index),
                _ => Binding::Opaque,
            };
            if plain {
                self.scopes.bind(scope, self.of(target), binding);
            } else {
                self.bind_opaque(target, scope);
            }
        }
    }

    fn bind_opaque(&mut self, pattern: Node<'t>, scope: usize) {
        let mut left = vec![pattern];
        while let Some(node) = left.pop().filter(|_| self.fuel.pay()) {
            match node.kind() {
                "identifier" | "shorthand_property_identifier_pattern" => {
                    self.scopes.bind(scope, self.of(node), Binding::Opaque);
                }
                "member_expression" | "subscript_expression" => {}
                _ => left.extend(node.named_children(&mut node.walk())),
            }
        }
    }

    /// The name that a property is written by.
    fn key(&self, node: Node<'t>) -> String {
        match node.kind() {
            "string" => self.string(node),
            "computed_property_name" => {
                let inner = node.named_child(0).filter(|one| one.kind() == "string");
                inner.map_or_else(String::new, |one| self.string(one))
            }
            _ => self.of(node).to_owned(),
        }
    }

    fn open_function(&mut self, node: Node<'t>, outer: usize) -> usize {
        let scope = self.scopes.open(Some(outer), Kind::Function, node.byte_range());
        if let Some(name) =
            node.child_by_field_name("name").filter(|one| one.kind() == "identifier")
        {
            self.scopes.bind(scope, self.of(name), Binding::Function);
        }
        if let Some(one) = node.child_by_field_name("parameter") {
            self.scopes.bind(scope, self.of(one), Binding::Opaque);
        }
        let Some(parameters) = node.child_by_field_name("parameters") else { return scope };
        for one in parameters.named_children(&mut parameters.walk()) {
            match (one.child_by_field_name("left"), one.child_by_field_name("right")) {
                (Some(name), Some(default)) if name.kind() == "identifier" => {
                    self.scopes.bind(scope, self.of(name), Binding::Opaque);
                    self.scopes.bind(scope, self.of(name), Binding::Value(default, outer));
                }
                (Some(pattern), _) => self.bind_opaque(pattern, scope),
                (None, _) => self.bind_opaque(one, scope),
            }
        }
        scope
    }
}
