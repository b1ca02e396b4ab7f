//! The table of operations. Each is entered once, with its handler, and from that come the router, the methods that a
//! path answers, the scopes that are asked for, the counters, and the OpenAPI document: none of them can drift.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter};
use hyper::Method;
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::http::Server;
use crate::problem::method_not_allowed;
use crate::scope::Scope;
use crate::wire;

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody.
    Open,
    /// Everybody who may speak at all.
    Known,
    /// Who has this scope.
    Scope(Scope),
}

/// What an operation does to the host, for those who must keep it from too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// It looks something up, or ends something.
    Light,
    /// It starts programs or writes disks: not taken while the host is under pressure.
    Heavy,
}

pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The body of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Takes {
    Nothing,
    Json(SchemaOf),
    /// The same, and an empty body stands for `{}`.
    JsonOrNothing(SchemaOf),
    Bytes(&'static str),
}

/// An answer that is no problem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gives {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) schema: Option<SchemaOf>,
}

/// What is known of an operation beside its handler.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) id: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) access: Access,
    pub(crate) load: Load,
    /// Whether it heeds Idempotency-Key.
    pub(crate) once: bool,
    pub(crate) query: Option<SchemaOf>,
    pub(crate) takes: Takes,
    pub(crate) gives: Vec<Gives>,
    /// Statuses of its problems, beside those that all have.
    pub(crate) refuses: &'static [u16],
}

/// An operation that looks something up.
pub(crate) fn look(id: &'static str, access: Access, summary: &'static str) -> Operation {
    Operation {
        id,
        summary,
        access,
        load: Load::Light,
        once: false,
        query: None,
        takes: Takes::Nothing,
        gives: Vec::new(),
        refuses: &[],
    }
}

/// An operation that starts something: not taken under pressure, and once only for each Idempotency-Key.
pub(crate) fn start(id: &'static str, access: Access, summary: &'static str) -> Operation {
    Operation { load: Load::Heavy, once: true, ..look(id, access, summary) }
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Not shared: the questions of different operations have the same names.
fn own_schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    T::json_schema(generator)
}

impl Operation {
    pub(crate) fn asks<T: JsonSchema>(self) -> Self {
        Self { query: Some(own_schema_of::<T>), ..self }
    }

    pub(crate) fn takes<T: JsonSchema>(self) -> Self {
        Self { takes: Takes::Json(schema_of::<T>), ..self }
    }

    pub(crate) fn may_take<T: JsonSchema>(self) -> Self {
        Self { takes: Takes::JsonOrNothing(schema_of::<T>), ..self }
    }

    pub(crate) fn takes_bytes(self, kind: &'static str) -> Self {
        Self { takes: Takes::Bytes(kind), ..self }
    }

    pub(crate) fn gives<T: JsonSchema>(self, status: u16) -> Self {
        self.giving(Gives { status, kind: wire::JSON, schema: Some(schema_of::<T>) })
    }

    /// A body that has no schema here.
    pub(crate) fn gives_as(self, status: u16, kind: &'static str) -> Self {
        self.giving(Gives { status, kind, schema: None })
    }

    /// The same as lines and as server-sent events.
    pub(crate) fn streams(self) -> Self {
        self.gives_as(200, wire::NDJSON).gives_as(200, wire::EVENT_STREAM)
    }

    pub(crate) fn gives_nothing(self) -> Self {
        self.gives_as(204, "")
    }

    fn giving(mut self, gives: Gives) -> Self {
        self.gives.push(gives);
        self
    }

    pub(crate) fn refuses(self, statuses: &'static [u16]) -> Self {
        Self { refuses: statuses, ..self }
    }

    pub(crate) fn heavy(self) -> Self {
        Self { load: Load::Heavy, ..self }
    }
}

/// An operation in its place.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) operation: Operation,
}

#[derive(Debug, Default)]
struct Route {
    methods: MethodRouter<Arc<Server>>,
    names: Vec<&'static str>,
}

/// All operations while they are entered.
#[derive(Debug, Default)]
pub(crate) struct Api {
    routes: BTreeMap<String, Route>,
    listed: Vec<Listed>,
}

impl Api {
    pub(crate) fn get<H, T>(&mut self, path: &str, handler: H, operation: Operation)
    where
        H: Handler<T, Arc<Server>>,
        T: 'static,
    {
        self.enter((MethodFilter::GET, Method::GET, "GET"), path, handler, operation);
    }

    pub(crate) fn post<H, T>(&mut self, path: &str, handler: H, operation: Operation)
    where
        H: Handler<T, Arc<Server>>,
        T: 'static,
    {
        self.enter((MethodFilter::POST, Method::POST, "POST"), path, handler, operation);
    }

    pub(crate) fn put<H, T>(&mut self, path: &str, handler: H, operation: Operation)
    where
        H: Handler<T, Arc<Server>>,
        T: 'static,
    {
        self.enter((MethodFilter::PUT, Method::PUT, "PUT"), path, handler, operation);
    }

    pub(crate) fn delete<H, T>(&mut self, path: &str, handler: H, operation: Operation)
    where
        H: Handler<T, Arc<Server>>,
        T: 'static,
    {
        self.enter((MethodFilter::DELETE, Method::DELETE, "DELETE"), path, handler, operation);
    }

    fn enter<H, T>(
        &mut self,
        (filter, method, name): (MethodFilter, Method, &'static str),
        path: &str,
        handler: H,
        operation: Operation,
    ) where
        H: Handler<T, Arc<Server>>,
        T: 'static,
    {
        let route = self.routes.entry(path.to_owned()).or_default();
        route.methods = std::mem::take(&mut route.methods).on(filter, handler);
        route.names.push(name);
        self.listed.push(Listed { method, path: path.to_owned(), operation });
    }

    /// The router, and the table that belongs to it.
    pub(crate) fn finish(self) -> (Router<Arc<Server>>, Table) {
        let mut router = Router::new();
        for (path, Route { methods, names }) in self.routes {
            let names = names.join(", ");
            let other = move || {
                let answer = method_not_allowed(&names);
                async move { answer }
            };
            router = router.route(&path, methods.fallback(other));
        }
        (router, Table::new(self.listed))
    }
}

/// All operations, once they are entered.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) listed: Vec<Listed>,
    places: HashMap<String, Vec<(Method, usize)>>,
}

impl Table {
    fn new(listed: Vec<Listed>) -> Self {
        let mut places: HashMap<String, Vec<(Method, usize)>> = HashMap::new();
        for (index, one) in listed.iter().enumerate() {
            places.entry(one.path.clone()).or_default().push((one.method.clone(), index));
        }
        Self { listed, places }
    }

    /// The operation of a path as the router has it.
    pub(crate) fn find(&self, path: &str, method: &Method) -> Option<usize> {
        // The router answers HEAD as it does GET.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let found = self.places.get(path)?.iter().find(|(one, _)| one == method)?;
        Some(found.1)
    }
}
