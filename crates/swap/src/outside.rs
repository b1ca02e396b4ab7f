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
    /// By these: certificates in PEM, of the host and of its operator. One that cannot be understood is passed over.
    pub fn by_bundle(pem: &[u8]) -> Result<Self, String> {
        Self::by(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect())
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
