//! Who speaks, once they were let in.

use std::sync::Arc;

use belljar::audit::Caller;
use belljar::sandbox::Owner;

use crate::keys::Key;
use crate::problem::Problem;
use crate::scope::Scope;

/// Whose sandboxes, runs and records are meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tenant {
    /// The user whom the server acts for: sees all records, and sandboxes without a tenant.
    Owner,
    Named(Arc<str>),
}

impl Tenant {
    /// As sandboxes are kept under it: nothing for the owner.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Owner => "",
            Self::Named(name) => name,
        }
    }
}

/// Somebody who may speak, and for what.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    pub(crate) tenant: Tenant,
    /// For records and limits.
    pub(crate) caller: Caller,
    /// The name of the key, `token` for the token; nothing on the socket.
    pub(crate) key: Option<String>,
    scopes: Vec<Scope>,
    /// Whether the kernel vouches for it that this is the server's own user, or root.
    pub(crate) is_local: bool,
}

impl Principal {
    /// The server's own user, or root, on the Unix socket.
    pub(crate) fn local(uid: u32) -> Self {
        let caller = Caller { uid: Some(uid), key: None, peer: "socket", request_id: None };
        let scopes = vec![Scope::Admin];
        Self { tenant: Tenant::Owner, caller, key: None, scopes, is_local: true }
    }

    /// Whoever knows the token, which is the owner's own.
    pub(crate) fn token(peer: &'static str) -> Self {
        let caller = Caller { uid: None, key: Some("token".to_owned()), peer, request_id: None };
        let (key, scopes) = (Some("token".to_owned()), vec![Scope::Admin]);
        Self { tenant: Tenant::Owner, caller, key, scopes, is_local: false }
    }

    pub(crate) fn key(key: &Key, peer: &'static str) -> Self {
        // In records the tenant stands first, so that all of a tenant's are found by it.
        let shown = if key.tenant == key.name {
            key.name.clone()
        } else {
            format!("{}/{}", key.tenant, key.name)
        };
        Self {
            tenant: Tenant::Named(key.tenant.as_str().into()),
            caller: Caller { uid: None, key: Some(shown), peer, request_id: None },
            key: Some(key.name.clone()),
            scopes: key.scopes.clone(),
            is_local: false,
        }
    }

    /// The same with the request's name, for what is recorded of it.
    pub(crate) fn asking(mut self, request_id: &str) -> Self {
        self.caller.request_id = Some(request_id.to_owned());
        self
    }

    /// On whose account new sandboxes are.
    pub(crate) fn owner(&self) -> Owner {
        match &self.caller {
            Caller { key: Some(key), .. } => Owner::key(key),
            Caller { uid: Some(uid), .. } => Owner::local(*uid),
            Caller { .. } => Owner::default(),
        }
    }

    pub(crate) fn may(&self, needed: Scope) -> bool {
        self.scopes.iter().any(|scope| scope.covers(needed))
    }

    pub(crate) fn needs(&self, needed: Scope) -> Result<(), Problem> {
        if self.may(needed) {
            return Ok(());
        }
        let name = self.key.as_deref().unwrap_or_default();
        let detail = format!("the key {name} lacks the scope {needed}");
        Err(Problem::coded("scope", detail))
    }

    /// The tenant whose records alone are shown; nothing for those who see all.
    pub(crate) fn only(&self) -> Option<String> {
        match &self.tenant {
            Tenant::Owner => None,
            Tenant::Named(_) if self.may(Scope::Admin) => None,
            Tenant::Named(name) => Some(name.to_string()),
        }
    }

    /// Under which its runs are counted.
    pub(crate) fn quota_name(&self) -> String {
        self.tenant.name().to_owned()
    }

    #[cfg(test)]
    pub(crate) fn of_key_for_test(name: &str) -> Self {
        Self {
            tenant: Tenant::Named(name.into()),
            key: Some(name.to_owned()),
            scopes: Scope::USUAL.to_vec(),
            ..Self::token("tcp")
        }
    }

    #[cfg(test)]
    pub(crate) fn of_owner_for_test() -> Self {
        Self::local(0)
    }
}
