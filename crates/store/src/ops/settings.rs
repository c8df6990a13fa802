//! Settings of the cloud, by name. They are not objects: a change of them takes no revision.

use crate::Result;
use crate::backend::Query;
use crate::value::args;

pub(crate) async fn get(q: &mut dyn Query, name: &str) -> Result<Option<String>> {
    let row = q.row("SELECT value FROM settings WHERE name = $1", args![name]).await?;
    row.map(|row| row.text(0).map(str::to_owned)).transpose()
}

/// Sets the value if it is still `before`. Returns false if it is not.
pub(crate) async fn put(q: &mut dyn Query, name: &str, before: Option<&str>, value: &str) -> Result<bool> {
    if get(q, name).await?.as_deref() != before {
        return Ok(false);
    }
    let sql = "INSERT INTO settings (name, value) VALUES ($1, $2) \
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    q.run(sql, args![name, value]).await?;
    Ok(true)
}
