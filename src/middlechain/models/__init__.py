"""The models that speak to a server. Nothing is imported here: each room says what it needs when it is used.

Whatever has a `name` and an `async def chat(call)` is a model too (`middlechain.chat.Model`).
"""
