"""Keeps a profile of every card, and says of every purchase how it compares with what the card did before."""

from __future__ import annotations

from typing import Any

from samovar import Context, Event, Task

DAY_MS = 86_400_000
NEW = {"purchases": 0, "mean": 0.0, "countries": {}, "dormant": False}


class CardProfiles(Task):
    """`purchase` in, `enriched` out: the purchase, and next to it what was usual for its card until then."""

    def process(self, event: Event, ctx: Context) -> None:
        profiles = ctx.store("profile")
        profile = profiles.get(event.key, NEW)
        ctx.emit("enriched", event.key, {**event.fields, **compared(event, profile)})
        profiles.put(event.key, with_purchase(profile, event))
        ctx.timer(event.key, event.time + ctx.params["dormant_days"] * DAY_MS)

    def on_timer(self, name: str, ctx: Context) -> None:
        """No purchase for long: the timer is named as the card, and every purchase set it again."""
        profiles = ctx.store("profile")
        profiles.put(name, {**profiles.get(name, NEW), "dormant": True})


def compared(event: Event, profile: dict[str, Any]) -> dict[str, Any]:
    countries: dict[str, int] = profile["countries"]
    return {
        "purchases": profile["purchases"],
        "usual_country": min(countries, key=lambda name: (-countries[name], name), default=None),
        "times_mean": round(event["amount"] / profile["mean"], 2) if profile["mean"] else None,
        "was_dormant": profile["dormant"],
    }


def with_purchase(profile: dict[str, Any], event: Event) -> dict[str, Any]:
    count = profile["purchases"] + 1
    countries = profile["countries"]
    return {
        "purchases": count,
        "mean": profile["mean"] + (event["amount"] - profile["mean"]) / count,
        "countries": {**countries, event["country"]: countries.get(event["country"], 0) + 1},
        "dormant": False,
    }
