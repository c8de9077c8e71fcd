//! TLS as the command line asks for it.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// The certificates to trust and the client's own.
#[derive(Clone, Default, Debug)]
pub struct TlsOptions {
    pub ca_file: Option<String>,
    /// Certificate and key of the client, in one PEM file as MongoDB has them.
    pub certificate_key_file: Option<String>,
    /// Accepts any certificate.
    pub insecure: bool,
}

impl TlsOptions {
    pub fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = if self.insecure {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        } else {
            let file = self
                .ca_file
                .as_ref()
                .ok_or("TLS needs --tls-ca FILE, or --tls-insecure to trust anyone")?;
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                roots
                    .add(certificate)
                    .map_err(|error| format!("{file}: {error}"))?;
            }
            builder.with_root_certificates(roots)
        };
        let config = match &self.certificate_key_file {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let key = PrivateKeyDer::from_pem_file(file)
                    .map_err(|error| format!("{file}: {error}"))?;
                builder
                    .with_client_auth_cert(certificates(file)?, key)
                    .map_err(|error| format!("{file}: {error}"))?
            }
        };
        Ok(Arc::new(config))
    }
}

fn certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| format!("{file}: {error}"))
}

/// Trusts whatever certificate comes; the handshake's signatures are still checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
