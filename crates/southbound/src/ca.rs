//! The certificate authority of the controller. This file changes when certificates get other contents or
//! lifetimes.

use crate::{Error, Node};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const AUTHORITY_DAYS: u32 = 20 * 365;
const NODE_DAYS: u32 = 10 * 365;
/// A controller makes a new server certificate at every start.
const SERVER_DAYS: u32 = 2 * 365;

/// Signs the certificates of nodes and of the controller's own listener. Its key and certificate are stored
/// in the database, so that all replicas of the controller use the same authority.
pub struct CertificateAuthority {
    key_pem: String,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Certificate and key of the controller's southbound listener.
pub struct ServerCertificate {
    /// The certificate, in PEM.
    pub certificate_pem: String,
    /// The private key, in PEM.
    pub key_pem: String,
}

impl CertificateAuthority {
    /// A new authority with a new key.
    ///
    /// # Errors
    /// [`Error::Certificate`] if the system gives no random bytes.
    pub fn create() -> Result<Self, Error> {
        let key = KeyPair::generate().map_err(failed("create the authority's key"))?;
        let mut params = params("Sluice node authority", AUTHORITY_DAYS);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(failed("create the authority's certificate"))?;
        Self::load(&key.serialize_pem(), &certificate.pem())
    }

    /// The authority with this key and certificate, both in PEM.
    ///
    /// # Errors
    /// [`Error::Certificate`] if one of them cannot be parsed.
    pub fn load(key_pem: &str, certificate_pem: &str) -> Result<Self, Error> {
        let key = KeyPair::from_pem(key_pem).map_err(failed("read the authority's key"))?;
        let issuer = Issuer::from_ca_cert_pem(certificate_pem, key)
            .map_err(failed("read the authority's certificate"))?;
        Ok(Self { key_pem: key_pem.to_owned(), certificate_pem: certificate_pem.to_owned(), issuer })
    }

    /// The private key, in PEM. Secret.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// The certificate, in PEM. Nodes and controller trust it.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Checks that [`Self::sign_csr`] can parse this request.
    ///
    /// # Errors
    /// [`Error::Certificate`] with the cause.
    pub fn check_csr(csr_pem: &str) -> Result<(), Error> {
        CertificateSigningRequestParams::from_pem(csr_pem).map_err(failed("read the certificate request"))?;
        Ok(())
    }

    /// Signs a certificate (PEM) for the public key of a PKCS#10 request, whose signature proves that the
    /// node has the private key. Nothing else of the request is used.
    ///
    /// # Errors
    /// [`Error::Certificate`] if the request cannot be parsed or its signature is wrong.
    pub fn sign_csr(&self, csr_pem: &str, node: Node) -> Result<String, Error> {
        let mut request = CertificateSigningRequestParams::from_pem(csr_pem)
            .map_err(failed("read the certificate request"))?;
        let mut params = params(&node.to_string(), NODE_DAYS);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        request.params = params;
        let certificate = request.signed_by(&self.issuer).map_err(failed("sign the node's certificate"))?;
        Ok(certificate.pem())
    }

    /// A new certificate for the controller's listener, valid for these names and addresses.
    ///
    /// # Errors
    /// [`Error::Certificate`] if a name is invalid.
    pub fn server_certificate(&self, names: &[String]) -> Result<ServerCertificate, Error> {
        let key = KeyPair::generate().map_err(failed("create the server's key"))?;
        let mut params = params("Sluice controller", SERVER_DAYS);
        params.subject_alt_names = CertificateParams::new(names.to_vec())
            .map_err(failed("use the southbound name"))?
            .subject_alt_names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate =
            params.signed_by(&key, &self.issuer).map_err(failed("sign the server's certificate"))?;
        Ok(ServerCertificate { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }
}

fn failed(action: &'static str) -> impl FnOnce(rcgen::Error) -> Error {
    move |source| Error::Certificate { action, source }
}

/// Parameters of a certificate that is valid from a day ago, because the clocks of nodes may be slow.
fn params(common_name: &str, days: u32) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.subject_alt_names = Vec::new();
    params.not_before = epoch + now.saturating_sub(DAY);
    params.not_after = epoch + now + DAY * days;
    params.use_authority_key_identifier_extension = true;
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::GatewayId;

    fn request(key: &KeyPair) -> String {
        CertificateParams::new(vec!["evil.example".to_owned()])
            .unwrap()
            .serialize_request(key)
            .unwrap()
            .pem()
            .unwrap()
    }

    #[test]
    fn certificate_names_the_node_of_the_token() {
        let made = CertificateAuthority::create().unwrap();
        let ca = CertificateAuthority::load(made.key_pem(), made.certificate_pem()).unwrap();
        let node = Node::Gateway(GatewayId::new(7));
        let key = KeyPair::generate().unwrap();
        let pem = ca.sign_csr(&request(&key), node).unwrap();
        let (_, parsed) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        assert_eq!(Node::of_certificate(&parsed.contents).unwrap(), node);
        let certificate = parsed.parse_x509().unwrap();
        assert!(certificate.subject_alternative_name().unwrap().is_none());
        let (_, authority) = x509_parser::pem::parse_x509_pem(made.certificate_pem().as_bytes()).unwrap();
        let authority = authority.parse_x509().unwrap();
        certificate.verify_signature(Some(authority.public_key())).unwrap();
    }

    #[test]
    fn invalid_request_is_an_error() {
        let ca = CertificateAuthority::create().unwrap();
        let node = Node::Gateway(GatewayId::new(7));
        for text in ["", "junk", ca.certificate_pem()] {
            assert!(ca.sign_csr(text, node).is_err());
        }
        assert!(CertificateAuthority::load("junk", "junk").is_err());
    }
}
