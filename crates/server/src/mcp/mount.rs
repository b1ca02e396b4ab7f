//! `/mcp`: the tools over HTTP, for whoever may speak to the server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use hyper::Method;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tower_service::Service;

use super::{Reach, Tools};
use crate::http::body::{self, Reading};
use crate::principal::Principal;
use crate::problem::Problem;
use crate::stop::Stop;

/// Where it is.
const PATH: &str = "/mcp";
/// Sessions of clients that begin with `initialize`; newer ones have none.
const MOST_SESSIONS: usize = 1000;
/// Of one tenant.
const SHARE: usize = 250;
const SESSION: &str = "mcp-session-id";
/// A session in which nothing was said for so long is forgotten.
const SESSION_IDLE: Duration = Duration::from_secs(3600);
/// One message.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

type Mcp = StreamableHttpService<Tools, LocalSessionManager>;

/// The route; what is in front of the others must be put in front of it too.
pub(crate) fn mount(api: Router, stop: &Stop) -> Router {
    let mut manager = LocalSessionManager::default();
    manager.session_config.keep_alive = Some(SESSION_IDLE);
    let manager = Arc::new(manager);
    // A page in a browser says where it comes from, and none has any business here. The name by which we are called is
    // looked at by the door.
    let config = || {
        StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .enforce_origin_validation()
            .with_max_request_body_bytes(MAX_MESSAGE_BYTES)
    };
    // Streams that wait for nothing would hold the end of the server up. Calls may end first, as runs may.
    let (waiting, calling) = (config(), config());
    let ends = [waiting.cancellation_token.clone(), calling.cancellation_token.clone()];
    let stop = stop.clone();
    tokio::spawn(async move {
        let [waits, calls] = ends;
        stop.draining().await;
        waits.cancel();
        stop.cancelled().await;
        calls.cancel();
    });
    let reach = Reach::inside(api);
    let tools = move || Ok(Tools::new(reach.clone()));
    let calls = Mcp::new(tools.clone(), Arc::clone(&manager), calling);
    let streams = Mcp::new(tools, Arc::clone(&manager), waiting);
    let (tenants, beginning) = (Mutex::default(), Mutex::default());
    let sessions = Arc::new(Sessions { manager, tenants, beginning });
    let answer = move |request: Request| {
        let service = if request.method() == Method::GET { &streams } else { &calls };
        let (service, sessions) = (service.clone(), Arc::clone(&sessions));
        async move { sessions.answer(service, request).await.unwrap_or_else(Problem::into_response) }
    };
    Router::new().route(PATH, any(answer))
}

/// Whose the sessions are: what is another's is as one that there is not.
struct Sessions {
    manager: Arc<LocalSessionManager>,
    tenants: Mutex<HashMap<String, String>>,
    /// Whose the requests are that may become sessions: each has its place before it is one.
    beginning: Mutex<Vec<String>>,
}

/// The place of one of those, until it is a session or is none.
struct Beginning<'a> {
    sessions: &'a Sessions,
    tenant: String,
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        let mut all = self.sessions.lock_beginning();
        if let Some(place) = all.iter().position(|one| *one == self.tenant) {
            all.swap_remove(place);
        }
    }
}

impl Sessions {
    async fn answer(&self, mut service: Mcp, request: Request) -> Result<Response, Problem> {
        let principal = request.extensions().get::<Arc<Principal>>();
        let reading = request.extensions().get::<Reading>();
        // The front lets nobody pass without.
        let (Some(principal), Some(reading)) = (principal, reading.cloned()) else {
            return Err(Problem::coded("ours", "nobody asked"));
        };
        let tenant = principal.tenant.name().to_owned();
        let named = request.headers().get(SESSION).map(|id| id.to_str().unwrap_or_default());
        // Held until the session is entered.
        let _beginning = match named {
            None if request.method() == Method::POST => Some(self.begin(&tenant).await?),
            Some(id) if self.lock().get(id).is_some_and(|owner| *owner != tenant) => {
                return Err(Problem::not_found("there is no such session"));
            }
            None | Some(_) => None,
        };
        let (head, body) = request.into_parts();
        let body = body::whole(body, &reading, MAX_MESSAGE_BYTES).await?;
        let answer = service.call(Request::from_parts(head, Body::from(body))).await;
        let answer = match answer {
            Ok(answer) => answer.into_response(),
            Err(never) => match never {},
        };
        if let Some(id) = answer.headers().get(SESSION).and_then(|id| id.to_str().ok()) {
            self.lock().entry(id.to_owned()).or_insert(tenant);
        }
        Ok(answer)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_beginning(&self) -> MutexGuard<'_, Vec<String>> {
        self.beginning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more, if there is any. Many may come at once.
    async fn begin(&self, tenant: &str) -> Result<Beginning<'_>, Problem> {
        let sessions = self.manager.sessions.read().await;
        let mut tenants = self.lock();
        let own = |tenants: &HashMap<String, String>| {
            tenants.values().filter(|owner| *owner == tenant).count()
        };
        if tenants.len() >= MOST_SESSIONS || own(&tenants) >= SHARE {
            // Those that have ended are known to the manager alone.
            tenants.retain(|id, _| sessions.contains_key(&**id));
        }
        let mut beginning = self.lock_beginning();
        let own = own(&tenants) + beginning.iter().filter(|one| *one == tenant).count();
        let all = sessions.len() + beginning.len();
        if all >= MOST_SESSIONS || (!tenant.is_empty() && own >= SHARE) {
            let detail = format!(
                "as many MCP sessions are open as may be: {MOST_SESSIONS} in all, and {SHARE} of one tenant"
            );
            return Err(Problem::coded("busy", detail));
        }
        beginning.push(tenant.to_owned());
        Ok(Beginning { sessions: self, tenant: tenant.to_owned() })
    }
}
