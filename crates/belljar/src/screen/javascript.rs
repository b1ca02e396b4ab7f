//! What JavaScript means, as far as names go: modules, destructuring, scopes, and texts put together.

mod bindings;

use tree_sitter::{Node, Tree};

use super::grammar::walk;
use super::meaning::{Argument, Meaning};
use super::scopes::{Binding, Fuel, Open, Scopes};
use super::value::{self, MAX_CANDIDATES, Value, Values};

/// Expressions inside each other that are followed.
const MAX_STEPS: usize = 64;
/// Items of a list that are followed; one more makes it unknown.
const MAX_ITEMS: usize = 1024;

/// Other names of the global object.
const GLOBALS: [&str; 4] = ["globalThis", "global", "window", "self"];
/// Functions that give the module that their text names.
const IMPORTERS: [&str; 3] = ["require", "import", "module.createRequire()"];

/// A text with its scopes.
#[derive(Debug)]
pub(super) struct Javascript<'t> {
    text: &'t str,
    scopes: Scopes<'t>,
    /// Assignments to names that were declared elsewhere: only the end of the text tells where.
    assigned: Vec<(&'t str, usize, Binding<'t>)>,
    fuel: Fuel,
}

impl<'t> Javascript<'t> {
    pub(super) fn read(text: &'t str, tree: &'t Tree) -> Result<Self, String> {
        let scopes = Scopes::new(text.len());
        let mut script = Self { text, scopes, assigned: Vec::new(), fuel: Fuel::new() };
        let mut open = Open::new();
        walk(tree, |node, depth| {
            let scope = open.at(depth);
            if let Some(inner) = script.enter(node, scope) {
                open.push(depth, inner);
            }
        })?;
        for (name, from, binding) in std::mem::take(&mut script.assigned) {
            let declared = script.scopes.find(from, name, || script.fuel.pay());
            script.scopes.bind(declared.unwrap_or(0), name, binding);
        }
        Ok(script)
    }

    fn of(&self, node: Node<'_>) -> &'t str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    /// The text of a string without substitutions.
    fn string(&self, node: Node<'t>) -> String {
        let mut text = String::new();
        for part in node.named_children(&mut node.walk()) {
            text.push_str(&value::unescaped(self.of(part)));
        }
        text
    }

    fn lookup(&self, name: &str, scope: usize, depth: usize) -> Values {
        let Some(found) = self.scopes.find(scope, name, || self.fuel.pay()) else {
            return vec![Value::Name(normal(name.to_owned()))];
        };
        let mut values = Values::new();
        for binding in &self.scopes.all[found].names[name] {
            if values.len() >= MAX_CANDIDATES || !self.fuel.pay() {
                break;
            }
            let of = |node: &Node<'t>, scope: &usize| self.eval(*node, *scope, depth + 1);
            let more = match binding {
                Binding::Import(name) => vec![Value::Name(name.clone())],
                Binding::Value(node, scope) => of(node, scope),
                Binding::Member(node, scope, key) => {
                    value::map(&of(node, scope), |one| member(one, key))
                }
                Binding::Item(node, scope, index) => {
                    let index = i64::try_from(*index).unwrap_or(i64::MAX);
                    value::map(&of(node, scope), |one| one.item(index))
                }
                Binding::Element(node, scope) => {
                    let lists = of(node, scope);
                    lists.iter().flat_map(|one| one.items().unwrap_or_default()).collect()
                }
                Binding::Added(node, scope) => value::pairs(&values, &of(node, scope), Value::plus),
                Binding::Function => vec![Value::Function],
                Binding::Opaque => vec![Value::Unknown],
            };
            value::add(&mut values, more);
        }
        values
    }

    fn eval(&self, node: Node<'t>, scope: usize, depth: usize) -> Values {
        if depth > MAX_STEPS || !self.fuel.pay() {
            return vec![Value::Unknown];
        }
        let deeper = |node: Option<Node<'t>>| {
            node.map_or_else(Values::new, |node| self.eval(node, scope, depth + 1))
        };
        let field = |name: &str| node.child_by_field_name(name);
        match node.kind() {
            "identifier" | "shorthand_property_identifier" => {
                self.lookup(self.of(node), scope, depth)
            }
            "import" => vec![Value::Name("import".to_owned())],
            "member_expression" => {
                let key = field("property").map_or("", |one| self.of(one));
                value::map(&deeper(field("object")), |object| member(object, key))
            }
            "subscript_expression" => {
                let (objects, keys) = (deeper(field("object")), deeper(field("index")));
                value::pairs(&objects, &keys, indexed)
            }
            "call_expression" => self.eval_call(node, scope, depth),
            "new_expression" => {
                let made = deeper(field("constructor"));
                value::map(&made, |one| match one.name() {
                    Some(name) => Value::Name(format!("{name}()")),
                    None => Value::Unknown,
                })
            }
            "string" => vec![Value::bounded(self.string(node))],
            "template_string" => self.eval_template(node, scope, depth),
            "number" => {
                let number = self.of(node).parse();
                vec![number.map_or(Value::Unknown, Value::Number)]
            }
            "true" | "false" | "null" => vec![Value::Name(self.of(node).to_owned())],
            "binary_expression" => {
                let operator = field("operator").map_or("", |one| self.of(one));
                operated(operator, deeper(field("left")), &deeper(field("right")))
            }
            "parenthesized_expression" | "await_expression" => deeper(node.named_child(0)),
            // The last one is the value of all: (0, eval)("…").
            "sequence_expression" => {
                let last = node.named_children(&mut node.walk()).last();
                deeper(last)
            }
            "assignment_expression" => deeper(field("right")),
            "ternary_expression" => {
                let mut either = deeper(field("consequence"));
                value::add(&mut either, deeper(field("alternative")));
                either
            }
            "array" => {
                let mut cursor = node.walk();
                let items = node.named_children(&mut cursor).take(MAX_ITEMS + 1);
                let items = items.map(|one| first(deeper(Some(one))));
                vec![Value::list(items.collect())]
            }
            "function_expression" | "arrow_function" | "generator_function" => {
                vec![Value::Function]
            }
            _ => vec![Value::Unknown],
        }
    }

    fn eval_template(&self, node: Node<'t>, scope: usize, depth: usize) -> Values {
        let mut whole = vec![Value::Text(String::new())];
        for part in node.named_children(&mut node.walk()) {
            let more = match part.named_child(0) {
                Some(inner) if part.kind() == "template_substitution" => {
                    self.eval(inner, scope, depth + 1)
                }
                _ => vec![Value::bounded(value::unescaped(self.of(part)))],
            };
            whole = value::pairs(&whole, &more, Value::plus);
        }
        whole
    }

    fn eval_call(&self, node: Node<'t>, scope: usize, depth: usize) -> Values {
        let Some(callee) = node.child_by_field_name("function") else { return Values::new() };
        let given = |index: usize| {
            let argument = self.argument(node, Some(index), None);
            argument.map_or_else(Values::new, |one| self.eval(one, scope, depth + 1))
        };
        if callee.kind() == "member_expression" {
            let object = callee.child_by_field_name("object");
            let object = object.map(|one| self.eval(one, scope, depth + 1)).unwrap_or_default();
            let method = callee.child_by_field_name("property").map_or("", |one| self.of(one));
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
                _ if IMPORTERS.contains(&name) => value::map(&given(0), |one| {
                    let text = one.text().map(module);
                    text.map_or(Value::Unknown, Value::Name)
                }),
                "String.fromCharCode" | "String.fromCodePoint" => {
                    let codes = (0..MAX_ITEMS).map(given).take_while(|one| !one.is_empty());
                    let characters = codes.map(|one| first(one).character());
                    vec![Value::list(characters.collect()).joined("")]
                }
                "atob" => value::map(&given(0), Value::decoded_base64),
                "String" => given(0),
                "Buffer.from" => value::pairs(&given(0), &given(1), |text, how| match how.text() {
                    Some("base64") => text.decoded_base64(),
                    Some("hex") => text.decoded_hex(),
                    _ => Value::Unknown,
                }),
                "Reflect.get" => value::pairs(&given(0), &given(1), |object, key| {
                    key.text().map_or(Value::Unknown, |key| member(object, key))
                }),
                // What is bound to an object is the same function.
                other => vec![Value::Name(match other.strip_suffix(".bind") {
                    Some(function) => function.to_owned(),
                    None => format!("{other}()"),
                })],
            };
            value::add(&mut all, result);
        }
        all
    }
}

impl<'t> Meaning<'t> for Javascript<'t> {
    fn values(&self, node: Node<'t>) -> Values {
        let scope = self.scopes.at(node.start_byte(), || self.fuel.pay());
        self.eval(node, scope, 0)
    }

    fn argument(&self, call: Node<'t>, index: Option<usize>, _: Option<&str>) -> Argument<'t> {
        let list = call.child_by_field_name("arguments")?;
        let all = list.named_children(&mut list.walk()).collect::<Vec<_>>();
        let known = all.into_iter().take_while(|one| one.kind() != "spread_element");
        known.filter(|one| one.kind() != "comment").nth(index?)
    }

    fn imports(&self, node: Node<'t>) -> Vec<String> {
        let source = node.child_by_field_name("source");
        source.map(|one| module(&self.string(one))).into_iter().collect()
    }

    fn brought(&self, call: Node<'t>, callee: &str) -> Vec<String> {
        if !IMPORTERS.contains(&callee) {
            return Vec::new();
        }
        let argument = self.argument(call, Some(0), None);
        let values = argument.map(|one| self.values(one)).unwrap_or_default();
        values.iter().filter_map(|one| one.text().map(module)).collect()
    }

    fn gave_up(&self) -> bool {
        self.fuel.is_used_up()
    }
}

/// A module by one name: `node:fs/promises` is `fs.promises`.
fn module(text: &str) -> String {
    let text = text.strip_prefix("node:").unwrap_or(text);
    if text == "fs/promises" { "fs.promises".to_owned() } else { text.to_owned() }
}

fn first(values: Values) -> Value {
    values.into_iter().next().unwrap_or(Value::Unknown)
}

/// One name for each thing: what is global has no object before it, and `f.call` is `f`.
fn normal(name: String) -> String {
    let mut short = name.as_str();
    while let Some(rest) = GLOBALS.iter().find_map(|one| short.strip_prefix(one)?.strip_prefix('.'))
    {
        short = rest;
    }
    for same in ["process.mainModule.require", "module.require", "module.constructor._load"] {
        if short == same {
            return "require".to_owned();
        }
    }
    let called = short.strip_suffix(".call").or_else(|| short.strip_suffix(".apply"));
    // A default export of a module in the old style is the module.
    called.or_else(|| short.strip_suffix(".default")).unwrap_or(short).to_owned()
}

fn member(object: &Value, key: &str) -> Value {
    match object {
        Value::Name(name) => Value::Name(normal(format!("{name}.{key}"))),
        // Every function was made by Function, and every other thing by a function.
        Value::Function if key == "constructor" => Value::Name("Function".to_owned()),
        Value::Text(_) | Value::List(_) | Value::Number(_) if key == "constructor" => {
            Value::Function
        }
        Value::Text(_) | Value::Number(_) | Value::List(_) | Value::Function | Value::Unknown => {
            Value::Unknown
        }
    }
}

fn indexed(object: &Value, key: &Value) -> Value {
    match (key.text(), key.number()) {
        (Some(key), _) => member(object, key),
        (None, Some(index)) => object.item(index),
        (None, None) => Value::Unknown,
    }
}

fn operated(operator: &str, left: Values, right: &[Value]) -> Values {
    match operator {
        "+" => value::pairs(&left, right, Value::plus),
        "||" | "&&" | "??" => {
            let mut either = left;
            value::add(&mut either, right.iter().cloned());
            either
        }
        _ => vec![Value::Unknown],
    }
}

/// Methods of texts and lists that make other texts and lists.
fn method_of(object: &Value, method: &str, given: &dyn Fn(usize) -> Values) -> Value {
    let text = object.text().unwrap_or_default();
    let separator = || first(given(0)).text().map(ToOwned::to_owned);
    match method {
        "join" => object.joined(&separator().unwrap_or_else(|| ",".to_owned())),
        "reverse" => object.reversed(),
        "concat" => object.plus(&first(given(0))),
        "toString" | "trim" => object.clone(),
        "toLowerCase" => Value::Text(text.to_lowercase()),
        "toUpperCase" => Value::Text(text.to_uppercase()),
        "split" => match separator() {
            Some(empty) if empty.is_empty() => Value::list(object.items().unwrap_or_default()),
            Some(by) => Value::list(text.split(&by).map(|one| Value::Text(one.into())).collect()),
            None => Value::Unknown,
        },
        "replace" | "replaceAll" => match (first(given(0)), first(given(1))) {
            (Value::Text(from), Value::Text(to)) => Value::bounded(text.replace(&from, &to)),
            _ => Value::Unknown,
        },
        _ => Value::Unknown,
    }
}
