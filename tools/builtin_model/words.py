"""What the questions of facts.py are about: pairs of words, and kinds of things.

The order of the entries is part of the recipe: a seeded draw goes by it.
"""

# ruff: noqa: SIM905 - a line of words is easier to read and edit than a column of quoted ones

from __future__ import annotations


def _pairs(text: str) -> list[tuple[str, str]]:
    """Pairs from ``one: other`` entries that ``|`` separates, over several lines."""
    joined = " ".join(text.split())
    return [(left, right) for left, _, right in (entry.strip().partition(":") for entry in joined.split("|"))]


CAPITALS = _pairs(
    """
    France:Paris | Germany:Berlin | Italy:Rome | Spain:Madrid | Portugal:Lisbon | England:London |
    Scotland:Edinburgh | Ireland:Dublin | the Netherlands:Amsterdam | Belgium:Brussels | Switzerland:Bern |
    Austria:Vienna | Poland:Warsaw | Hungary:Budapest | Greece:Athens | Turkey:Ankara | Russia:Moscow |
    Ukraine:Kyiv | Sweden:Stockholm | Norway:Oslo | Denmark:Copenhagen | Finland:Helsinki | Iceland:Reykjavik |
    Japan:Tokyo | China:Beijing | India:New Delhi | South Korea:Seoul | Thailand:Bangkok | Vietnam:Hanoi |
    Indonesia:Jakarta | Australia:Canberra | New Zealand:Wellington | Canada:Ottawa | the United
    States:Washington, D.C. | Mexico:Mexico City | Brazil:Brasilia | Argentina:Buenos Aires | Chile:Santiago |
    Peru:Lima | Colombia:Bogota | Cuba:Havana | Egypt:Cairo | Morocco:Rabat | Kenya:Nairobi | Nigeria:Abuja |
    Ghana:Accra | Ethiopia:Addis Ababa | Iran:Tehran | Iraq:Baghdad | Saudi Arabia:Riyadh | Romania:Bucharest |
    Bulgaria:Sofia | Croatia:Zagreb | the Czech Republic:Prague
    """
)
"""Country: capital."""

OPPOSITES = _pairs(
    """
    big:small | hot:cold | happy:sad | up:down | left:right | day:night | black:white | fast:slow | tall:short |
    old:new | young:old | light:dark | heavy:light | hard:soft | good:bad | open:closed | full:empty | wet:dry |
    clean:dirty | loud:quiet | early:late | long:short | near:far | high:low | rich:poor | strong:weak |
    thick:thin | wide:narrow | easy:difficult | true:false | yes:no | inside:outside | start:finish | begin:end |
    push:pull | give:take | buy:sell | love:hate | laugh:cry | sweet:sour | smooth:rough | brave:afraid |
    first:last | above:below | before:after | asleep:awake | kind:mean | sharp:dull | front:back | summer:winter |
    win:lose | find:lose | come:go | sit:stand | alive:dead | right:wrong | safe:dangerous | cheap:expensive |
    noisy:quiet | more:less | many:few
    """
)
"""Word: its opposite."""

PLURALS = _pairs(
    """
    cat:cats | dog:dogs | child:children | mouse:mice | foot:feet | tooth:teeth | man:men | woman:women |
    sheep:sheep | fish:fish | leaf:leaves | wolf:wolves | box:boxes | bus:buses | baby:babies | city:cities |
    story:stories | party:parties | knife:knives | goose:geese | person:people | book:books | tree:trees |
    car:cars | potato:potatoes | tomato:tomatoes | hero:heroes | berry:berries | fly:flies | dish:dishes
    """
)
"""One: many."""

PAST_TENSES = _pairs(
    """
    go:went | run:ran | eat:ate | see:saw | come:came | give:gave | take:took | make:made | find:found | say:said
    | tell:told | sing:sang | swim:swam | fly:flew | write:wrote | read:read | buy:bought | bring:brought |
    think:thought | catch:caught | teach:taught | sleep:slept | feel:felt | keep:kept | leave:left | lose:lost |
    meet:met | sit:sat | stand:stood | win:won | play:played | walk:walked | jump:jumped | help:helped |
    look:looked | want:wanted | laugh:laughed | cry:cried | try:tried | stop:stopped | drink:drank | begin:began |
    break:broke | speak:spoke | fall:fell | grow:grew | know:knew | throw:threw | draw:drew | hide:hid
    """
)
"""Present: past."""

BABIES = _pairs(
    """
    cat:kitten | dog:puppy | cow:calf | horse:foal | sheep:lamb | goat:kid | pig:piglet | hen:chick |
    duck:duckling | bear:cub | lion:cub | kangaroo:joey | frog:tadpole | deer:fawn | goose:gosling | swan:cygnet |
    owl:owlet | rabbit:bunny | elephant:calf | whale:calf
    """
)
"""Animal: its young."""

RHYMES = _pairs(
    """
    cat:hat, bat and mat | dog:fog, log and frog | sun:fun, run and bun | tree:bee, sea and free | moon:soon,
    spoon and tune | star:car, far and jar | ball:tall, wall and fall | light:night, bright and kite | day:play,
    say and way | house:mouse and blouse | cake:lake, snake and make | rain:train, plane and chain | bed:red, head
    and said | fish:dish and wish | king:ring, sing and wing | boat:coat, goat and note | snow:go, slow and grow |
    book:look, cook and hook | bear:chair, hair and care | tail:snail, mail and whale
    """
)
"""Word: what rhymes with it."""

COLOURS = _pairs(
    """
    the sky:blue | grass:green | snow:white | a banana:yellow | a strawberry:red | an elephant:gray | a
    carrot:orange | chocolate:brown | coal:black | a flamingo:pink | milk:white | a leaf:green | a ripe tomato:red
    | the sea:blue | a lemon:yellow | a plum:purple | a polar bear:white | a crow:black | a frog:green | a
    pumpkin:orange
    """
)
"""Thing: its colour."""

SOUNDS = _pairs(
    """
    cat:meow | dog:woof | cow:moo | duck:quack | sheep:baa | pig:oink | lion:roar | rooster:cock-a-doodle-doo |
    horse:neigh | bee:buzz | frog:ribbit | owl:hoot | mouse:squeak | snake:hiss | wolf:howl | crow:caw |
    chick:cheep | donkey:hee-haw | turkey:gobble
    """
)
"""Animal: what it says."""

LEGS = {
    "dog": 4,
    "cat": 4,
    "horse": 4,
    "cow": 4,
    "bird": 2,
    "duck": 2,
    "hen": 2,
    "spider": 8,
    "ant": 6,
    "bee": 6,
    "butterfly": 6,
    "snake": 0,
    "fish": 0,
    "person": 2,
    "elephant": 4,
    "lion": 4,
    "octopus": 8,
    "frog": 4,
    "pig": 4,
    "sheep": 4,
    "worm": 0,
    "penguin": 2,
}
"""Animal: number of legs."""

KINDS = {
    "fruit": "apple banana orange pear grape lemon cherry plum peach mango strawberry melon".split(),
    "vegetable": "carrot potato onion cabbage pea bean spinach broccoli".split(),
    "animal": "dog cat horse cow lion bear rabbit elephant monkey tiger".split(),
    "color": "red blue green yellow purple pink brown black white orange".split(),
    "bird": "eagle owl parrot duck penguin robin sparrow swan".split(),
    "insect": "ant bee butterfly beetle fly mosquito".split(),
    "tool": "hammer saw shovel screwdriver".split(),
    "sport": "soccer tennis basketball swimming hockey".split(),
    "drink": "milk water juice tea coffee".split(),
    "toy": "doll kite puzzle yo-yo".split(),
    "vehicle": "car bus train bicycle truck airplane".split(),
}
"""Kind: things of that kind."""

DAYS = """
Monday Tuesday Wednesday Thursday Friday Saturday Sunday
""".split()

MONTHS = """
January February March April May June July August September October November December
""".split()

NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty
""".split()
