"""English sentences in groups of related meaning, for showing that embeddings and their neighbours are preserved."""

GROUPS: dict[str, tuple[str, ...]] = {
    "weather": (
        "Heavy rain is expected along the coast until Thursday evening.",
        "The forecast warns of wet and stormy weather by the sea this week.",
        "The first snow of the winter has fallen in the mountains.",
        "It has not snowed this early in the valley for thirty years.",
    ),
    "cooking": (
        "Let the dough rest under a damp cloth until it has doubled in size.",
        "Good bread needs little more than flour, water, salt and patience.",
        "She bakes her own loaves with a sourdough starter.",
        "Fry the onions slowly in butter, otherwise they turn bitter.",
        "How long should I fry the onions for this soup?",
    ),
    "space": (
        "The probe sent back its first pictures of the icy moon last night.",
        "A spacecraft has photographed one of Jupiter's frozen moons.",
        "Light from that galaxy left it before the Earth had formed.",
        "The telescope observes galaxies billions of light years away.",
    ),
    "computing": (
        "The program crashes whenever the input file is empty.",
        "An empty file makes the application stop with an error.",
        "Most of the running time is spent waiting for memory, not calculating.",
        "We made the code twice as fast by keeping its data in the cache memory.",
    ),
    "music": (
        "He practises the violin for two hours before breakfast.",
        "My daughter has been learning to play the violin since she was five.",
        "The choir is looking for tenors who can read a score.",
        "We need more men's voices in our choir.",
    ),
    "health": (
        "Drink enough water and stay in bed if you have a fever.",
        "Rest and plenty of fluids help against a high temperature.",
        "The doctor advised him to lose weight and to walk every day.",
        "A daily walk is good for your heart and your weight.",
    ),
    "travel": (
        "The night train to the mountains leaves from platform nine.",
        "Which platform does the train to Vienna leave from?",
        "Our flight was cancelled, so we spent the night at the airport.",
        "All planes are grounded, and the passengers sleep in the terminal.",
        "Passengers were stranded when the airline cancelled its flights.",
    ),
    "money": (
        "The central bank raised interest rates for the third time this year.",
        "Higher interest rates have made borrowing more expensive.",
        "Shares fell sharply after the company announced a loss.",
        "The stock market reacted badly to the firm's poor results.",
        "Investors sold their shares when profits disappointed.",
    ),
    "animals": (
        "The cat slept on the warm bonnet of the car.",
        "Our kitten likes to nap in the sun on the window sill.",
        "My neighbour's dog barks at every stranger who passes.",
        "The puppy growls whenever somebody comes to the door.",
        "Dogs guard the house by barking at unknown visitors.",
    ),
}

SENTENCES: tuple[str, ...] = tuple(sentence for group in GROUPS.values() for sentence in group)
