//! The certificates of one sandbox: an authority that only its programs are told to believe, and a leaf for each host.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::{Duration, OffsetDateTime};
use tokio_rustls::rustls::ServerConfig;

use crate::sealed::Pair;

/// Leaves that are kept; the oldest goes first.
const MOST_LEAVES: usize = 256;
/// A sandbox may live for long, and so may a clock be wrong.
const BEFORE: Duration = Duration::days(2);
const AFTER: Duration = Duration::days(397);
/// The one protocol that is read inside.
pub(crate) const ALPN: &[u8] = b"http/1.1";

/// An authority. Its key is in this memory alone.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    /// One key for all leaves: whoever has it has the authority's, too.
    key: KeyPair,
    leaves: Mutex<VecDeque<(String, Arc<ServerConfig>)>>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Authority(…)")
    }
}

impl Authority {
    pub fn new() -> Result<Self, rcgen::Error> {
        let (params, key) = (own_params(), KeyPair::generate()?);
        let pem = params.self_signed(&key)?.pem();
        Self::of(params, key, pem)
    }

    /// The one that somebody else made.
    pub fn from_pair(pair: &Pair) -> Result<Self, rcgen::Error> {
        Self::of(own_params(), KeyPair::from_pem(&pair.key)?, pair.certificate.clone())
    }

    fn of(params: CertificateParams, key: KeyPair, pem: String) -> Result<Self, rcgen::Error> {
        let issuer = Issuer::new(params, key);
        Ok(Self { issuer, pem, key: KeyPair::generate()?, leaves: Mutex::default() })
    }

    /// For the one process that speaks for it.
    pub fn pair(&self) -> Pair {
        Pair { certificate: self.pem.clone(), key: self.issuer.key().serialize_pem() }
    }

    /// The certificate, for the sandbox to believe.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// What speaks as this host.
    pub fn server(&self, name: &str) -> Result<Arc<ServerConfig>, String> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = leaves.iter().find(|(known, _)| known == name) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(self.leaf(name)?);
        if leaves.len() >= MOST_LEAVES {
            leaves.pop_front();
        }
        leaves.push_back((name.to_owned(), Arc::clone(&made)));
        Ok(made)
    }

    fn leaf(&self, name: &str) -> Result<ServerConfig, String> {
        let told = |error: rcgen::Error| error.to_string();
        let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(told)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        valid_now(&mut params);
        let leaf = params.signed_by(&self.key, &self.issuer).map_err(told)?;
        let chain = vec![CertificateDer::from(leaf.der().to_vec())];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|one| one.with_no_client_auth().with_single_cert(chain, key));
        let mut config = config.map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }

    #[cfg(test)]
    fn kept(&self) -> usize {
        self.leaves.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// What is the same in every authority, but for the key.
fn own_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Belljar sandbox");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_now(&mut params);
    params
}

fn valid_now(params: &mut CertificateParams) {
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - BEFORE, now + AFTER);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_made_once_each_and_bounded() {
        let authority = Authority::new().unwrap();
        let first = authority.server("a.example").unwrap();
        assert!(Arc::ptr_eq(&first, &authority.server("a.example").unwrap()));
        for number in 0..MOST_LEAVES {
            authority.server(&format!("n{number}.example")).unwrap();
        }
        assert_eq!(authority.kept(), MOST_LEAVES);
        assert!(!Arc::ptr_eq(&first, &authority.server("a.example").unwrap()), "let go");
        assert!(authority.pem().starts_with("-----BEGIN CERTIFICATE-----"));
        let other = Authority::new().unwrap();
        assert_ne!(authority.pem(), other.pem(), "each sandbox has its own");
    }
}
