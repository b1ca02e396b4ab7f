//! The other TLS: with the real host, verified as the host's own programs would.

use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::authority::ALPN;

/// Whom real hosts are verified by.
#[derive(Clone, Debug)]
pub struct Outside {
    config: Arc<ClientConfig>,
}

impl Outside {
    /// By the host's own store. Read before the process locks itself down.
    pub fn by_host() -> Result<Self, String> {
        let found = rustls_native_certs::load_native_certs();
        Self::by(found.certs)
    }

    /// By a bundle of the operator's: certificates in PEM.
    pub fn by_bundle(pem: &[u8]) -> Result<Self, String> {
        let roots = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        Self::by(roots.map_err(|error| format!("the bundle holds no certificates: {error}"))?)
    }

    fn by(roots: Vec<CertificateDer<'static>>) -> Result<Self, String> {
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(roots);
        if added == 0 {
            return Err(
                "no certificate authority is known here: install ca-certificates".to_owned()
            );
        }
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let mut config = config.with_root_certificates(store).with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self { config: Arc::new(config) })
    }

    /// Speaks with a host over this connection, if it is that host.
    pub async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        name: &str,
    ) -> std::io::Result<TlsStream<S>> {
        let name = ServerName::try_from(name.to_owned()).map_err(std::io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await
    }
}
