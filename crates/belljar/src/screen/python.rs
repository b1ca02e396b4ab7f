//! What Python code means, as far as names go: imports, aliases, scopes, and texts put together from pieces.

mod bindings;

use tree_sitter::{Node, Tree};

use super::grammar::walk;
use super::meaning::{Argument, Meaning};
use super::scopes::{Binding, Fuel, Open, Scopes};
use super::value::{self, MAX_CANDIDATES, Value, Values};

/// Expressions inside each other that are followed.
const MAX_STEPS: usize = 64;

/// Calls that give the module that their text names.
const IMPORTERS: [&str; 3] = ["__import__", "importlib.import_module", "importlib.__import__"];
/// Calls that give the names of a scope as a mapping.
const NAMESPACES: [&str; 3] = ["globals()", "locals()", "vars()"];

/// A text with its scopes.
#[derive(Debug)]
pub(super) struct Python<'t> {
    text: &'t str,
    scopes: Scopes<'t>,
    fuel: Fuel,
}

impl<'t> Python<'t> {
    pub(super) fn read(text: &'t str, tree: &'t Tree) -> Result<Self, String> {
        let mut python = Self { text, scopes: Scopes::new(text.len()), fuel: Fuel::new() };
        let mut open = Open::new();
        walk(tree, |node, depth| {
            let scope = open.at(depth);
            if let Some(inner) = python.enter(node, scope) {
                open.push(depth, inner);
            }
        })?;
        Ok(python)
    }

    fn of(&self, node: Node<'_>) -> &'t str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    /// What a name may be, seen from a scope.
    fn lookup(&self, name: &str, scope: usize, depth: usize) -> Values {
        let Some(found) = self.scopes.find(scope, name, || self.fuel.pay()) else {
            return self.unbound(name, scope);
        };
        let mut values = Values::new();
        for binding in &self.scopes.all[found].names[name] {
            if values.len() >= MAX_CANDIDATES || !self.fuel.pay() {
                break;
            }
            let more = match binding {
                Binding::Import(name) => vec![Value::Name(name.clone())],
                Binding::Value(node, scope) => self.eval(*node, *scope, depth + 1),
                Binding::Item(node, scope, index) => {
                    let index = i64::try_from(*index).unwrap_or(i64::MAX);
                    value::map(&self.eval(*node, *scope, depth + 1), |one| one.item(index))
                }
                Binding::Element(node, scope) => {
                    let lists = self.eval(*node, *scope, depth + 1);
                    lists.iter().flat_map(|one| one.items().unwrap_or_default()).collect()
                }
                Binding::Added(node, scope) => {
                    let more = self.eval(*node, *scope, depth + 1);
                    value::pairs(&values, &more, Value::plus)
                }
                Binding::Function => vec![Value::Function],
                Binding::Member(..) | Binding::Opaque => vec![Value::Unknown],
            };
            value::add(&mut values, more);
        }
        values
    }

    /// A name that nothing in the text binds: one that came by `import *`, or a built-in one.
    fn unbound(&self, name: &str, scope: usize) -> Values {
        let mut values = vec![Value::Name(normal(name.to_owned()))];
        let mut scope = Some(scope);
        while let Some(one) = scope.filter(|_| self.fuel.pay()) {
            let stars = self.scopes.all[one].stars.iter();
            value::add(&mut values, stars.map(|star| Value::Name(format!("{star}.{name}"))));
            scope = self.scopes.all[one].parent;
        }
        values
    }

    /// What an expression may come to.
    fn eval(&self, node: Node<'t>, scope: usize, depth: usize) -> Values {
        if depth > MAX_STEPS || !self.fuel.pay() {
            return vec![Value::Unknown];
        }
        let deeper = |node: Option<Node<'t>>| {
            node.map_or_else(Values::new, |node| self.eval(node, scope, depth + 1))
        };
        let field = |name: &str| node.child_by_field_name(name);
        match node.kind() {
            "identifier" => self.lookup(self.of(node), scope, depth),
            "attribute" => {
                let attribute = field("attribute").map_or("", |one| self.of(one));
                value::map(&deeper(field("object")), |object| member(object, attribute))
            }
            "subscript" => self.eval_subscript(node, scope, depth),
            "call" => self.eval_call(node, scope, depth),
            "string" => self.eval_string(node, scope, depth),
            "concatenated_string" => {
                let mut whole = vec![Value::Text(String::new())];
                for part in node.named_children(&mut node.walk()) {
                    whole = value::pairs(&whole, &deeper(Some(part)), Value::plus);
                }
                whole
            }
            "integer" => vec![integer(self.of(node))],
            "binary_operator" => {
                let (left, right) = (deeper(field("left")), deeper(field("right")));
                let operator = field("operator").map_or("", |one| self.of(one));
                value::pairs(&left, &right, |left, right| operated(operator, left, right))
            }
            "parenthesized_expression" | "await" => deeper(node.named_child(0)),
            "named_expression" => deeper(field("value")),
            "assignment" => deeper(field("right")),
            "boolean_operator" => {
                let mut either = deeper(field("left"));
                value::add(&mut either, deeper(field("right")));
                either
            }
            "conditional_expression" => {
                let mut either = deeper(node.named_child(0));
                value::add(&mut either, deeper(node.named_child(2)));
                either
            }
            "list" | "tuple" | "set" | "expression_list" => {
                let mut cursor = node.walk();
                let items = node.named_children(&mut cursor).take(MAX_ITEMS + 1);
                let items = items.map(|one| first(deeper(Some(one))));
                vec![Value::list(items.collect())]
            }
            "list_comprehension" | "generator_expression" => {
                vec![self.eval_comprehension(node, depth)]
            }
            "true" | "false" | "none" => vec![Value::Name(self.of(node).to_owned())],
            "lambda" => vec![Value::Function],
            _ => vec![Value::Unknown],
        }
    }

    fn eval_string(&self, node: Node<'t>, scope: usize, depth: usize) -> Values {
        let start = node.named_child(0).map_or("", |one| self.of(one));
        let raw = start.contains(['r', 'R']);
        let mut whole = vec![Value::Text(String::new())];
        for part in node.named_children(&mut node.walk()) {
            let more = match part.kind() {
                "string_content" if raw => vec![Value::bounded(self.of(part).to_owned())],
                "string_content" => vec![Value::bounded(value::unescaped(self.of(part)))],
                "interpolation" => {
                    let inner = part.child_by_field_name("expression");
                    let inner = inner.map(|one| self.eval(one, scope, depth + 1));
                    value::map(&inner.unwrap_or_default(), |one| {
                        one.text().map_or(Value::Unknown, |_| one.clone())
                    })
                }
                _ => continue,
            };
            whole = value::pairs(&whole, &more, Value::plus);
        }
        whole
    }

    /// `x for x in […]` and `chr(x) for x in […]`, where the list is written out.
    fn eval_comprehension(&self, node: Node<'t>, depth: usize) -> Value {
        let scope = self.scopes.at(node.start_byte(), || self.fuel.pay());
        let clause =
            node.named_children(&mut node.walk()).find(|one| one.kind() == "for_in_clause");
        let parts = clause.and_then(|one| one.child_by_field_name("right"));
        let (Some(list), Some(body)) = (parts, node.child_by_field_name("body")) else {
            return Value::Unknown;
        };
        let list = first(self.eval(list, scope, depth + 1));
        let Some(items) = list.items() else { return Value::Unknown };
        match body.kind() {
            "identifier" => Value::list(items),
            "call"
                if body.child_by_field_name("function").map(|one| self.of(one)) == Some("chr") =>
            {
                Value::list(items.iter().map(Value::character).collect())
            }
            _ => Value::Unknown,
        }
    }

    fn eval_subscript(&self, node: Node<'t>, scope: usize, depth: usize) -> Values {
        let Some(object) = node.child_by_field_name("value") else { return Values::new() };
        let Some(index) = node.child_by_field_name("subscript") else { return Values::new() };
        let objects = self.eval(object, scope, depth + 1);
        if index.kind() == "slice" {
            let whole = self.of(index).replace(' ', "") == "::-1";
            return value::map(&objects, |one| if whole { one.reversed() } else { Value::Unknown });
        }
        let keys = self.eval(index, scope, depth + 1);
        let mut all = Values::new();
        for (object, key) in objects.iter().flat_map(|one| keys.iter().map(move |key| (one, key))) {
            match (object, key) {
                (Value::Name(name), Value::Text(key)) if NAMESPACES.contains(&name.as_str()) => {
                    value::add(&mut all, self.lookup(key, scope, depth + 1));
                }
                (Value::Name(name), Value::Text(key)) if name == "sys.modules" => {
                    value::add(&mut all, [Value::Name(key.clone())]);
                }
                (Value::Name(name), Value::Text(key)) => {
                    // A module's names as a mapping; `__builtins__` is one or the other.
                    let module = name.strip_suffix(".__dict__").unwrap_or(name);
                    value::add(&mut all, [member(&Value::Name(module.to_owned()), key)]);
                }
                (list, Value::Number(index)) => value::add(&mut all, [list.item(*index)]),
                _ => value::add(&mut all, [Value::Unknown]),
            }
        }
        all
    }

    fn eval_call(&self, node: Node<'t>, scope: usize, depth: usize) -> Values {
        let Some(callee) = node.child_by_field_name("function") else { return Values::new() };
        let given = |index: usize| {
            let argument = self.argument(node, Some(index), None);
            argument.map_or_else(Values::new, |one| self.eval(one, scope, depth + 1))
        };
        if callee.kind() == "attribute" {
            let object = callee.child_by_field_name("object");
            let object = object.map(|one| self.eval(one, scope, depth + 1)).unwrap_or_default();
            let method = callee.child_by_field_name("attribute").map_or("", |one| self.of(one));
            if object.iter().any(|one| matches!(one, Value::Text(_) | Value::List(_))) {
                return value::map(&object, |one| method_of(one, method, &given));
            }
        }
        let mut all = Values::new();
        for function in self.eval(callee, scope, depth + 1) {
            let Some(name) = function.name() else {
                value::add(&mut all, [Value::Unknown]);
                continue;
            };
            let result = match name {
                "getattr" => value::pairs(&given(0), &given(1), |object, key| {
                    key.text().map_or(Value::Unknown, |key| member(object, key))
                }),
                "vars" if !given(0).is_empty() => given(0),
                _ if IMPORTERS.contains(&name) => value::map(&given(0), |one| {
                    let text = one.text().map(|text| imported(name, text));
                    text.map_or(Value::Unknown, |text| Value::Name(text.to_owned()))
                }),
                "chr" => value::map(&given(0), Value::character),
                "str" | "bytes" | "bytearray" => value::map(&given(0), |one| {
                    let characters = || {
                        let codes = one.items().unwrap_or_default();
                        Value::list(codes.iter().map(Value::character).collect()).joined("")
                    };
                    one.text().map_or_else(characters, |_| one.clone())
                }),
                "reversed" => value::map(&given(0), Value::reversed),
                "list" | "tuple" | "iter" => given(0),
                "map" => value::pairs(&given(0), &given(1), |function, list| {
                    let characters = function.name() == Some("chr");
                    let items = list.items().filter(|_| characters).unwrap_or_default();
                    Value::list(items.iter().map(Value::character).collect())
                }),
                "bytes.fromhex" | "bytearray.fromhex" | "binascii.unhexlify" => {
                    value::map(&given(0), Value::decoded_hex)
                }
                "base64.b64decode" | "binascii.a2b_base64" => {
                    value::map(&given(0), Value::decoded_base64)
                }
                "codecs.decode" => value::pairs(&given(0), &given(1), |text, how| {
                    match how.text().unwrap_or_default() {
                        "rot13" | "rot_13" => text.rotated_13(),
                        "hex" => text.decoded_hex(),
                        "base64" => text.decoded_base64(),
                        _ => Value::Unknown,
                    }
                }),
                other => vec![Value::Name(format!("{other}()"))],
            };
            value::add(&mut all, result);
        }
        all
    }
}

/// Items of a list that are followed; one more makes it unknown.
const MAX_ITEMS: usize = 1024;

impl<'t> Meaning<'t> for Python<'t> {
    fn values(&self, node: Node<'t>) -> Values {
        let scope = self.scopes.at(node.start_byte(), || self.fuel.pay());
        self.eval(node, scope, 0)
    }

    fn argument(
        &self,
        call: Node<'t>,
        index: Option<usize>,
        keyword: Option<&str>,
    ) -> Argument<'t> {
        let list = call.child_by_field_name("arguments")?;
        if list.kind() == "generator_expression" {
            return Some(list).filter(|_| index == Some(0));
        }
        let all: Vec<_> = list.named_children(&mut list.walk()).collect();
        let by_name = all.iter().find_map(|one| {
            let name =
                one.child_by_field_name("name").filter(|_| one.kind() == "keyword_argument")?;
            (Some(self.of(name)) == keyword).then(|| one.child_by_field_name("value")).flatten()
        });
        let positional = |one: &&Node<'t>| !matches!(one.kind(), "keyword_argument" | "comment");
        // After *args nobody knows which argument stands where.
        let known = all.iter().take_while(|one| one.kind() != "list_splat");
        by_name.or_else(|| known.filter(positional).nth(index?).copied())
    }

    fn imports(&self, node: Node<'t>) -> Vec<String> {
        let mut names = Vec::new();
        if let Some(module) = node.child_by_field_name("module_name") {
            let module = dotted(self.of(module));
            for name in node.children_by_field_name("name", &mut node.walk()) {
                let name = name.child_by_field_name("name").unwrap_or(name);
                names.push(format!("{module}.{}", self.of(name)));
            }
            names.push(module);
            return names;
        }
        for name in node.children_by_field_name("name", &mut node.walk()) {
            let name = name.child_by_field_name("name").unwrap_or(name);
            names.push(dotted(self.of(name)));
        }
        names
    }

    fn brought(&self, call: Node<'t>, callee: &str) -> Vec<String> {
        if !IMPORTERS.contains(&callee) {
            return Vec::new();
        }
        let argument = self.argument(call, Some(0), Some("name"));
        let values = argument.map(|one| self.values(one)).unwrap_or_default();
        values.iter().filter_map(|one| one.text().map(ToOwned::to_owned)).collect()
    }

    fn gave_up(&self) -> bool {
        self.fuel.is_used_up()
    }
}

/// `__import__("a.b")` gives `a`, `import_module("a.b")` gives `a.b`.
fn imported<'a>(importer: &str, text: &'a str) -> &'a str {
    if importer == "importlib.import_module" {
        text
    } else {
        text.split('.').next().unwrap_or(text)
    }
}

/// A name with its dots, without the blanks that may stand around them.
fn dotted(text: &str) -> String {
    text.chars().filter(|one| !one.is_whitespace()).collect()
}

fn first(values: Values) -> Value {
    values.into_iter().next().unwrap_or(Value::Unknown)
}

/// One name for each thing: what is built in has no module before it.
fn normal(name: String) -> String {
    for prefix in ["builtins.", "__builtins__.", "__builtin__."] {
        if let Some(short) = name.strip_prefix(prefix) {
            return short.to_owned();
        }
    }
    match name.strip_prefix("posix.") {
        Some(same) => format!("os.{same}"),
        None => name,
    }
}

fn member(object: &Value, key: &str) -> Value {
    match object {
        Value::Name(name) if key == "__dict__" => Value::Name(name.clone()),
        // A bound method of a function calls it all the same.
        Value::Name(name) if key == "__call__" => Value::Name(name.clone()),
        Value::Name(name) => Value::Name(normal(format!("{name}.{key}"))),
        Value::Text(_) | Value::Number(_) | Value::List(_) | Value::Function | Value::Unknown => {
            Value::Unknown
        }
    }
}

fn integer(text: &str) -> Value {
    let text = text.replace('_', "").to_ascii_lowercase();
    let parsed = match text.get(..2) {
        Some("0x") => i64::from_str_radix(&text[2..], 16),
        Some("0o") => i64::from_str_radix(&text[2..], 8),
        Some("0b") => i64::from_str_radix(&text[2..], 2),
        _ => text.parse(),
    };
    parsed.map_or(Value::Unknown, Value::Number)
}

fn operated(operator: &str, left: &Value, right: &Value) -> Value {
    match (operator, left, right) {
        ("+", _, _) => left.plus(right),
        ("-", Value::Number(a), Value::Number(b)) => {
            a.checked_sub(*b).map_or(Value::Unknown, Value::Number)
        }
        // A path below a path is a path.
        ("/", Value::Name(_), _) => left.clone(),
        ("|", Value::Name(a), Value::Name(b)) => Value::Name(format!("{a}|{b}")),
        ("%", Value::Text(form), Value::Text(text)) if form.matches('%').count() == 1 => {
            Value::bounded(form.replace("%s", text))
        }
        _ => Value::Unknown,
    }
}

/// Methods of texts that make other texts.
fn method_of(object: &Value, method: &str, given: &dyn Fn(usize) -> Values) -> Value {
    let text = object.text().unwrap_or_default();
    match method {
        "join" => first(given(0)).joined(text),
        "decode" | "encode" | "strip" | "lstrip" | "rstrip" => object.clone(),
        "lower" | "casefold" => Value::Text(text.to_lowercase()),
        "upper" => Value::Text(text.to_uppercase()),
        "replace" => match (first(given(0)), first(given(1))) {
            (Value::Text(from), Value::Text(to)) => Value::bounded(text.replace(&from, &to)),
            _ => Value::Unknown,
        },
        "format" if text.matches('{').count() == 1 => {
            let inner = first(given(0));
            let filled = inner.text().map(|inner| Value::bounded(text.replace("{}", inner)));
            filled.unwrap_or(Value::Unknown)
        }
        _ => Value::Unknown,
    }
}
