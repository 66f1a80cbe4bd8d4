"""The travel assistant: its instructions, its two tools, and the cities it is asked about. All facts are in here."""

from __future__ import annotations

from typing import Annotated

from chatstack.tools.tool import Tool, tool

INSTRUCTIONS = (
    "You are a travel assistant. When somebody asks about a city, first call get_weather for it, then call "
    "get_clothing_advice with the temperature that you got. Then answer in two short sentences: what the weather is, "
    "and what to wear. Answer questions about what was said from the conversation, without tools."
)

# Degrees Celsius at morning, noon and evening, the sky, wind in km/h, chance of rain in percent.
_WEATHER: dict[str, tuple[int, int, int, str, int, int]] = {
    "Dubai": (31, 38, 34, "clear sky", 14, 0),
    "Mumbai": (27, 31, 29, "heavy showers", 22, 85),
    "New York": (9, 14, 11, "scattered clouds", 19, 20),
    "Tokyo": (16, 21, 18, "light rain", 11, 60),
    "Reykjavik": (-2, 1, -1, "snow showers", 41, 70),
    "Cairo": (22, 33, 27, "hazy sun", 16, 0),
    "Sydney": (18, 24, 20, "clear sky", 25, 10),
    "Lima": (16, 19, 17, "overcast", 13, 15),
    "Oslo": (-6, -3, -5, "clear sky", 8, 5),
    "Nairobi": (14, 25, 19, "scattered clouds", 12, 30),
    "Lisbon": (13, 18, 15, "light rain", 21, 55),
    "Seoul": (3, 8, 5, "clear sky", 10, 5),
}
CITIES: tuple[str, ...] = tuple(_WEATHER)

_ADVICE: tuple[tuple[float, str], ...] = (
    (35, "very light, airy clothes, a hat and sunscreen"),
    (25, "light clothes such as a t-shirt and shorts"),
    (15, "a light jacket or a sweater, and comfortable trousers"),
    (5, "a warm coat, a scarf, and several layers below"),
)
_FREEZING = "a heavy winter coat, gloves, a hat, and thermal layers"
_HOURS = (0, 3, 6, 9, 12, 15, 18, 21)

LOOKING_BACK = f"Which cities did I ask about, and what was the temperature in {CITIES[0]}?"
"""The user's last question, when little of the conversation is sent as it was."""


def question(city: str) -> str:
    """Return the user's question about a city."""
    return f"What is the weather in {city}, and what should I wear there?"


@tool
def get_weather(city: Annotated[str, "The name of the city, in English"]) -> dict[str, object]:
    """Today's weather in a city: the temperature now and every three hours in degrees Celsius, sky, wind and rain."""
    known = {name.casefold(): name for name in CITIES}
    name = known.get(city.strip().casefold())
    if name is None:
        return {"error": f"no weather for this city; it is known for: {', '.join(CITIES)}"}
    morning, noon, evening, sky, wind, rain = _WEATHER[name]
    rising, falling = (morning + noon) // 2, (noon + evening) // 2
    day = (morning - 1, morning - 2, morning, rising, noon, falling, evening, evening - 1)
    return {
        "city": name,
        "temperature": noon,
        "sky": sky,
        "wind_kmh": wind,
        "rain_percent": rain,
        "forecast": [{"hour": hour, "temperature": at} for hour, at in zip(_HOURS, day, strict=True)],
    }


@tool
def get_clothing_advice(
    temperature: Annotated[float, "The temperature in degrees Celsius"],
) -> dict[str, object]:
    """The clothes for a temperature."""
    advice = next((text for above, text in _ADVICE if temperature > above), _FREEZING)
    return {"temperature": temperature, "clothing_advice": advice}


TOOLS: tuple[Tool[..., dict[str, object]], ...] = (get_weather, get_clothing_advice)
