//! What binds names in Python, and in which scope.

use tree_sitter::Node;

use super::{MAX_STEPS, Python, dotted, normal};
use crate::screen::scopes::{Binding, Kind};

impl<'t> Python<'t> {
    /// Notes what a node binds; the answer is the scope that it opens.
    pub(super) fn enter(&mut self, node: Node<'t>, scope: usize) -> Option<usize> {
        let field = |name: &str| node.child_by_field_name(name);
        match node.kind() {
            "import_statement" | "future_import_statement" => self.import(node, scope),
            "import_from_statement" => self.import_from(node, scope),
            "assignment" => {
                if let Some((left, right)) = field("left").zip(field("right")) {
                    self.assign(left, right, scope);
                }
            }
            "augmented_assignment" => {
                if let Some((left, right)) = field("left").zip(field("right"))
                    && left.kind() == "identifier"
                {
                    self.scopes.bind(scope, self.of(left), Binding::Added(right, scope));
                }
            }
            "named_expression" => {
                // PEP 572: it binds in the function around a comprehension.
                let outer = self.scopes.function(scope);
                if let Some((name, value)) = field("name").zip(field("value")) {
                    self.scopes.bind(outer, self.of(name), Binding::Value(value, scope));
                }
            }
            "for_statement" | "for_in_clause" => {
                if let Some((left, right)) = field("left").zip(field("right")) {
                    self.bind_elements(left, right, scope);
                }
            }
            "as_pattern" => self.bind_as(node, scope),
            "except_clause" => {
                let alias = field("alias");
                alias.into_iter().for_each(|one| self.bind_opaque(one, scope));
            }
            "case_pattern" => self.bind_case(node, scope),
            "global_statement" | "nonlocal_statement" => self.elsewhere(node, scope),
            "function_definition" => {
                if let Some(name) = field("name") {
                    self.scopes.bind(scope, self.of(name), Binding::Function);
                }
                return Some(self.open_function(node, scope));
            }
            "lambda" => return Some(self.open_function(node, scope)),
            "class_definition" => {
                if let Some(name) = field("name") {
                    self.scopes.bind(scope, self.of(name), Binding::Opaque);
                }
                return Some(self.scopes.open(Some(scope), Kind::Class, node.byte_range()));
            }
            "list_comprehension"
            | "set_comprehension"
            | "dictionary_comprehension"
            | "generator_expression" => {
                return Some(self.scopes.open(Some(scope), Kind::Block, node.byte_range()));
            }
            _ => {}
        }
        None
    }

    fn import(&mut self, node: Node<'t>, scope: usize) {
        for name in node.children_by_field_name("name", &mut node.walk()) {
            if let Some((whole, alias)) = self.aliased(name) {
                self.scopes.bind(scope, alias, Binding::Import(whole));
            } else {
                let whole = self.of(name);
                let first = whole.split('.').next().unwrap_or(whole).trim();
                self.scopes.bind(scope, first, Binding::Import(first.to_owned()));
            }
        }
    }

    fn import_from(&mut self, node: Node<'t>, scope: usize) {
        let Some(module) = node.child_by_field_name("module_name") else { return };
        let module = dotted(self.of(module));
        for child in node.children(&mut node.walk()) {
            if child.kind() == "wildcard_import" {
                self.scopes.all[scope].stars.push(module.clone());
            }
        }
        for name in node.children_by_field_name("name", &mut node.walk()) {
            let (whole, alias) =
                self.aliased(name).unwrap_or((self.of(name).into(), self.of(name)));
            let whole = normal(format!("{module}.{whole}"));
            self.scopes.bind(scope, alias, Binding::Import(whole));
        }
    }

    fn aliased(&self, node: Node<'t>) -> Option<(String, &'t str)> {
        let alias = node.child_by_field_name("alias")?;
        let name = node.child_by_field_name("name")?;
        Some((dotted(self.of(name)), self.of(alias)))
    }

    /// `left = right`, item by item where both are written out.
    fn assign(&mut self, left: Node<'t>, right: Node<'t>, scope: usize) {
        // `a = b = c` gives both the last.
        let mut value = right;
        for _ in 0..MAX_STEPS {
            let Some(inner) = (value.kind() == "assignment")
                .then(|| value.child_by_field_name("right"))
                .flatten()
            else {
                break;
            };
            value = inner;
        }
        match left.kind() {
            "identifier" => {
                self.scopes.bind(scope, self.of(left), Binding::Value(value, scope));
            }
            "pattern_list" | "tuple_pattern" | "list_pattern" => {
                for (index, target) in left.named_children(&mut left.walk()).enumerate() {
                    if target.kind() == "identifier" {
                        let binding = Binding::Item(value, scope, index);
                        self.scopes.bind(scope, self.of(target), binding);
                    } else {
                        self.bind_opaque(target, scope);
                    }
                }
            }
            _ => {}
        }
    }

    fn bind_elements(&mut self, left: Node<'t>, right: Node<'t>, scope: usize) {
        if left.kind() == "identifier" {
            self.scopes.bind(scope, self.of(left), Binding::Element(right, scope));
        } else {
            self.bind_opaque(left, scope);
        }
    }

    /// `with EXPRESSION as NAME`, `except ERROR as NAME`, `case PATTERN as NAME`.
    fn bind_as(&mut self, node: Node<'t>, scope: usize) {
        let Some(target) = node.child_by_field_name("alias") else { return };
        let name = target.named_child(0).unwrap_or(target);
        match (node.named_child(0), name.kind()) {
            (Some(value), "identifier") => {
                self.scopes.bind(scope, self.of(name), Binding::Value(value, scope));
            }
            _ => self.bind_opaque(name, scope),
        }
    }

    fn bind_case(&mut self, node: Node<'t>, scope: usize) {
        for child in node.named_children(&mut node.walk()) {
            if child.kind() == "dotted_name" && child.named_child_count() == 1 {
                self.scopes.bind(scope, self.of(child), Binding::Opaque);
            }
        }
    }

    /// Every plain name in a pattern.
    fn bind_opaque(&mut self, pattern: Node<'t>, scope: usize) {
        let mut left = vec![pattern];
        while let Some(node) = left.pop().filter(|_| self.fuel.pay()) {
            match node.kind() {
                "identifier" => self.scopes.bind(scope, self.of(node), Binding::Opaque),
                "attribute" | "subscript" => {}
                _ => left.extend(node.named_children(&mut node.walk())),
            }
        }
    }

    fn elsewhere(&mut self, node: Node<'t>, scope: usize) {
        for name in node.named_children(&mut node.walk()) {
            let name = self.of(name);
            let target = if node.kind() == "global_statement" {
                Some(0)
            } else {
                let outer = self.scopes.all[scope].parent;
                outer.and_then(|outer| self.scopes.find(outer, name, || self.fuel.pay()))
            };
            if let Some(target) = target.filter(|target| *target != scope) {
                self.scopes.all[scope].elsewhere.insert(name, target);
            }
        }
    }

    fn open_function(&mut self, node: Node<'t>, outer: usize) -> usize {
        let scope = self.scopes.open(Some(outer), Kind::Function, node.byte_range());
        let Some(parameters) = node.child_by_field_name("parameters") else { return scope };
        for one in parameters.named_children(&mut parameters.walk()) {
            let default = one.child_by_field_name("value");
            match (one.child_by_field_name("name"), default) {
                (Some(name), Some(value)) if name.kind() == "identifier" => {
                    self.scopes.bind(scope, self.of(name), Binding::Opaque);
                    self.scopes.bind(scope, self.of(name), Binding::Value(value, outer));
                }
                (Some(name), _) => self.bind_opaque(name, scope),
                // The type beside the name is no name of a parameter.
                (None, _) if one.kind() == "typed_parameter" => {
                    let name = one.named_child(0);
                    name.into_iter().for_each(|name| self.bind_opaque(name, scope));
                }
                (None, _) => self.bind_opaque(one, scope),
            }
        }
        scope
    }
}
