//! The check of a fencing token in a write to a Kubernetes object.
//!
//! A lock cannot stop a controller that is paused between its check and its write. The object can: [`patch`] keeps
//! the largest token in an annotation of the object, and writes both at the version that it has read. A holder that
//! was superseded is refused, and so is one whose object has changed meanwhile: its token is checked again.
//!
//! Only writes through this function are checked. A next holder that must not see late writes makes its own first
//! write, also an empty one, before it reads in order to decide.
//!
//! ```no_run
//! # async fn scale(client: kube::Client, guard: &latchwork::Guard) -> Result<(), Box<dyn std::error::Error>> {
//! use k8s_openapi::api::apps::v1::Deployment;
//! use kube::Api;
//!
//! let deployments: Api<Deployment> = Api::namespaced(client, "shop");
//! let change = serde_json::json!({ "spec": { "replicas": 3 } });
//! latchwork_kubernetes::fence::patch(&deployments, "web", guard, change).await?;
//! # Ok(())
//! # }
//! ```

use std::fmt::Debug;

use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt as _};
use latchwork_store::{CheckError, Error, ErrorKind, Fenced, FencingToken, Held};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The annotation with the largest token that was admitted.
pub const TOKEN: &str = "latchwork/token";

/// Applies a JSON merge patch to an object, unless a larger token than that of the guard was admitted for it, and
/// keeps the token. Two requests, and two more for each write of another client in between.
///
/// An object is fenced by one lock: the tokens of several have no order. The account needs `get` and `patch` on the
/// object.
///
/// # Errors
///
/// - [`Refused`](CheckError::Refused) if another holder has superseded this one: nothing was written.
/// - [`Invalid`](CheckError::Invalid) if the patch is not an object, sets the version itself, or the token or the
///   annotation of the object is not a token.
/// - [`Database`](CheckError::Database) with the error of the API server; the write may have happened.
///
/// # Cancel safety
///
/// The API server may still apply the patch.
pub async fn patch<K>(
    api: &Api<K>,
    name: &str,
    guard: &(impl Held + Sync),
    change: Value,
) -> Result<K, CheckError<kube::Error>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let token = guard.token();
    let mut change = fenced(change, token)?;
    loop {
        let object = api.get(name).await.map_err(CheckError::Database)?;
        if let Some(newest) = newest(&object)?.filter(|newest| *newest > token) {
            return Err(CheckError::Refused(Fenced { refused: token, newest }));
        }
        // With a version, a patch is refused if the object has another one by now.
        change["metadata"]["resourceVersion"] = json!(object.resource_version());
        match api.patch(name, &PatchParams::default(), &Patch::Merge(&change)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            done => return done.map_err(CheckError::Database),
        }
    }
}

/// The largest token that was admitted for an object; `None` if none was.
///
/// # Errors
///
/// [`Invalid`](CheckError::Invalid) if the annotation is not a token.
pub fn newest<K: Resource>(object: &K) -> Result<Option<FencingToken>, CheckError<kube::Error>> {
    let Some(text) = object.annotations().get(TOKEN) else { return Ok(None) };
    let read = text.parse::<FencingToken>().ok().filter(|token| token.is_in_range());
    read.map(Some).ok_or_else(|| {
        let message =
            format!("the annotation {TOKEN} of {} is not a token: {text:?}", object.name_any());
        let error = Error::new(ErrorKind::Invalid, message);
        CheckError::Invalid(error.with_next_step(
            "set it to the largest token that has written, or remove it while no holder writes",
        ))
    })
}

/// The patch with the token.
fn fenced(mut change: Value, token: FencingToken) -> Result<Value, CheckError<kube::Error>> {
    if change.is_null() {
        change = json!({});
    }
    let is_object = |value: &Value| value.is_object() || value.is_null();
    let meta = &change["metadata"];
    if !is_object(&change) || !is_object(meta) || !is_object(&meta["annotations"]) {
        let message = "change: the patch, its metadata or its annotations are not an object";
        return Err(CheckError::Invalid(
            Error::new(ErrorKind::Invalid, message)
                .with_next_step("give a JSON merge patch, as for kubectl patch --type=merge"),
        ));
    }
    if !meta["resourceVersion"].is_null() {
        let message = "change: the patch names a resourceVersion, which the fence does itself";
        return Err(CheckError::Invalid(
            Error::new(ErrorKind::Invalid, message)
                .with_next_step("leave metadata.resourceVersion out of the patch"),
        ));
    }
    let number = token.to_bigint().map_err(CheckError::Invalid)?;
    change["metadata"]["annotations"][TOKEN] = json!(number.to_string());
    Ok(change)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn the_token_is_added_to_a_patch() {
        let token = FencingToken::from_raw(7);
        let change = fenced(json!({"spec": {"replicas": 3}}), token).unwrap();
        assert_eq!(change["metadata"]["annotations"][TOKEN], "7");
        assert_eq!(change["spec"]["replicas"], 3);
        let kept = json!({"metadata": {"annotations": {"a": "b"}}});
        assert_eq!(fenced(kept, token).unwrap()["metadata"]["annotations"]["a"], "b");
        let merge = "give a JSON merge patch, as for kubectl patch --type=merge";
        for (bad, step) in [
            (json!([]), merge),
            (json!({"metadata": 3}), merge),
            (json!({"metadata": {"annotations": "x"}}), merge),
            (
                json!({"metadata": {"resourceVersion": "1"}}),
                "leave metadata.resourceVersion out of the patch",
            ),
        ] {
            let Err(CheckError::Invalid(error)) = fenced(bad, token) else { panic!("{step}") };
            assert_eq!(error.next_step(), Some(step), "{error}");
        }
    }

    #[test]
    fn h233_a_number_that_is_no_token_is_an_error() {
        let none = FencingToken::from_raw(1 << 63);
        assert!(matches!(fenced(json!({}), none), Err(CheckError::Invalid(_))));
        let mut map = ConfigMap::default();
        map.metadata.name = Some("stock".into());
        assert_eq!(newest(&map).unwrap(), None);
        for text in ["", "abc", "-1", "1.5", "NaN", "true", "9223372036854775808", "1e300"] {
            map.annotations_mut().insert(TOKEN.into(), text.into());
            let error = newest(&map).unwrap_err().to_string();
            assert!(error.contains("stock") && error.contains("largest token"), "{error}");
        }
        map.annotations_mut().insert(TOKEN.into(), i64::MAX.to_string());
        assert_eq!(newest(&map).unwrap(), Some(FencingToken::from_raw(i64::MAX as u64)));
    }
}
