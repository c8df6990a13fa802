//! Two labs of the same topology run at the same time, and removing one does not disturb the other.

use crate::Ground;
use crate::leftovers::traces;
use crate::support::{Outcome, ensure, reaches};
use sluice_lab::{Error, Lab, Options, down};

pub async fn scenario(ground: &Ground) -> Outcome {
    let (one, two) = (ground.name.clone() + "a", ground.name.clone() + "b");
    let outcome = side_by_side(ground, &one, &two).await;
    down(&one).await?;
    down(&two).await?;
    outcome
}

async fn side_by_side(ground: &Ground, one: &str, two: &str) -> Outcome {
    let options = |name: &str| Options::standard(name, &ground.binary);
    let (first, second) = tokio::try_join!(Lab::up(options(one)?), Lab::up(options(two)?))?;
    ensure!(first.state().index != second.state().index, "both labs have one management network");
    for lab in [&first, &second] {
        reaches(lab, "web-1", "web-3").await?;
        reaches(lab, "web-1", "db-2").await?;
    }
    let again = Lab::up(options(one)?).await;
    ensure!(matches!(again, Err(Error::AlreadyUp(_))), "a second lab {one} came up");
    down(one).await?;
    let left = traces(one).await?;
    ensure!(left.is_empty(), "lab {one} left {left:?}");
    reaches(&second, "web-1", "web-3").await?;
    reaches(&second, "shop-3", "shop-1").await
}
