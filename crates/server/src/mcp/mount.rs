//! `/mcp`: the tools over HTTP, for whoever may speak to the server.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use hyper::{Method, StatusCode};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tower_service::Service;

use super::{Reach, Tools};
use crate::problem::Problem;
use crate::stop::Stop;

/// Where it is.
const PATH: &str = "/mcp";
/// Sessions of clients that begin with `initialize`; newer ones have none.
const MOST_SESSIONS: usize = 1000;
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
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .enforce_origin_validation()
        .with_max_request_body_bytes(MAX_MESSAGE_BYTES);
    let (ending, stop) = (config.cancellation_token.clone(), stop.clone());
    // Streams that wait for nothing would hold the end of the server up.
    tokio::spawn(async move {
        stop.draining().await;
        ending.cancel();
    });
    let reach = Reach::inside(api);
    let tools = move || Ok(Tools::new(reach.clone()));
    let service = Mcp::new(tools, Arc::clone(&manager), config);
    let answer = move |request: Request| {
        let (mut service, manager) = (service.clone(), Arc::clone(&manager));
        async move {
            if begins(&request) && manager.sessions.read().await.len() >= MOST_SESSIONS {
                return full();
            }
            match service.call(request).await {
                Ok(response) => response.into_response(),
                Err(never) => match never {},
            }
        }
    };
    Router::new().route(PATH, any(answer))
}

/// Whether this may begin a session.
fn begins(request: &Request) -> bool {
    request.method() == Method::POST && !request.headers().contains_key("mcp-session-id")
}

fn full() -> Response {
    let detail = format!("{MOST_SESSIONS} MCP sessions are open, which is all that may be");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "busy", detail).into_response()
}
