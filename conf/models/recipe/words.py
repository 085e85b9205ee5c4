"""The facts that the model learns by heart, as plain word lists."""

CAPITALS = """
Afghanistan Kabul|Albania Tirana|Algeria Algiers|Andorra Andorra la Vella|Angola Luanda|Argentina Buenos Aires
Armenia Yerevan|Australia Canberra|Austria Vienna|Azerbaijan Baku|Bahrain Manama|Bangladesh Dhaka|Belarus Minsk
Belgium Brussels|Belize Belmopan|Benin Porto-Novo|Bhutan Thimphu|Bolivia Sucre|Botswana Gaborone|Brazil Brasilia
Brunei Bandar Seri Begawan|Bulgaria Sofia|Burundi Gitega|Cambodia Phnom Penh|Cameroon Yaounde|Canada Ottawa
Chad N'Djamena|Chile Santiago|China Beijing|Colombia Bogota|Croatia Zagreb|Cuba Havana|Cyprus Nicosia
Denmark Copenhagen|Djibouti Djibouti|Ecuador Quito|Egypt Cairo|Eritrea Asmara|Estonia Tallinn|Eswatini Mbabane
Ethiopia Addis Ababa|Fiji Suva|Finland Helsinki|France Paris|Gabon Libreville|Georgia Tbilisi|Germany Berlin
Ghana Accra|Greece Athens|Guatemala Guatemala City|Guinea Conakry|Guyana Georgetown|Haiti Port-au-Prince
Honduras Tegucigalpa|Hungary Budapest|Iceland Reykjavik|India New Delhi|Indonesia Jakarta|Iran Tehran|Iraq Baghdad
Ireland Dublin|Israel Jerusalem|Italy Rome|Jamaica Kingston|Japan Tokyo|Jordan Amman|Kazakhstan Astana|Kenya Nairobi
Kuwait Kuwait City|Kyrgyzstan Bishkek|Laos Vientiane|Latvia Riga|Lebanon Beirut|Lesotho Maseru|Liberia Monrovia
Libya Tripoli|Liechtenstein Vaduz|Lithuania Vilnius|Luxembourg Luxembourg|Madagascar Antananarivo|Malawi Lilongwe
Malaysia Kuala Lumpur|Maldives Male|Mali Bamako|Malta Valletta|Mauritania Nouakchott|Mauritius Port Louis
Mexico Mexico City|Moldova Chisinau|Monaco Monaco|Mongolia Ulaanbaatar|Montenegro Podgorica|Morocco Rabat
Mozambique Maputo|Myanmar Naypyidaw|Namibia Windhoek|Nepal Kathmandu|Nicaragua Managua|Niger Niamey|Nigeria Abuja
Norway Oslo|Oman Muscat|Pakistan Islamabad|Panama Panama City|Paraguay Asuncion|Peru Lima|Poland Warsaw
Portugal Lisbon|Qatar Doha|Romania Bucharest|Russia Moscow|Rwanda Kigali|Senegal Dakar|Serbia Belgrade
Singapore Singapore|Slovakia Bratislava|Slovenia Ljubljana|Somalia Mogadishu|Spain Madrid|Suriname Paramaribo
Sweden Stockholm|Switzerland Bern|Syria Damascus|Taiwan Taipei|Tajikistan Dushanbe|Tanzania Dodoma|Thailand Bangkok
Togo Lome|Tunisia Tunis|Turkey Ankara|Turkmenistan Ashgabat|Uganda Kampala|Ukraine Kyiv|Uruguay Montevideo
Uzbekistan Tashkent|Venezuela Caracas|Vietnam Hanoi|Yemen Sanaa|Zambia Lusaka|Zimbabwe Harare
"""
LONG_CAPITALS = """
the United States|Washington
the United Kingdom|London
the Netherlands|Amsterdam
the Philippines|Manila
the Czech Republic|Prague
England|London
Scotland|Edinburgh
Wales|Cardiff
Costa Rica|San Jose
El Salvador|San Salvador
New Zealand|Wellington
North Korea|Pyongyang
South Korea|Seoul
Saudi Arabia|Riyadh
Sierra Leone|Freetown
South Africa|Pretoria
Sri Lanka|Colombo
"""
LANGUAGES = """
France French|Germany German|Italy Italian|Spain Spanish|Portugal Portuguese|Brazil Portuguese|Mexico Spanish
Japan Japanese|China Chinese|Russia Russian|Poland Polish|Greece Greek|Turkey Turkish|Sweden Swedish|Norway Norwegian
Denmark Danish|Finland Finnish|Hungary Hungarian|Austria German|Egypt Arabic|Vietnam Vietnamese|Thailand Thai
Romania Romanian|Bulgaria Bulgarian|Ukraine Ukrainian|Argentina Spanish|Australia English|Iceland Icelandic
"""
OPPOSITES = """
hot cold|big small|up down|left right|day night|black white|fast slow|old young|good bad|happy sad|open closed
full empty|high low|long short|hard soft|wet dry|light dark|early late|near far|rich poor|strong weak|thick thin
wide narrow|deep shallow|clean dirty|easy difficult|first last|inside outside|loud quiet|heavy light|new old
true false|begin end|win lose|push pull|buy sell|give take|love hate|question answer|north south|east west|yes no
always never|above below|front back|friend enemy|asleep awake|cheap expensive|sweet sour|brave afraid
"""
PLURALS = """
child children|mouse mice|foot feet|tooth teeth|man men|woman women|person people|goose geese|ox oxen|sheep sheep
fish fish|leaf leaves|knife knives|wolf wolves|city cities|baby babies|box boxes|bus buses|cat cats|dog dogs
book books|house houses|tree trees|car cars|potato potatoes|life lives|half halves|story stories
"""
THING_COLOURS = """
the sky blue|grass green|snow white|blood red|a lemon yellow|a banana yellow|coal black|milk white|a tomato red
an orange orange|the sun yellow|chocolate brown|a carrot orange|an elephant grey|a cherry red|the sea blue
a strawberry red|salt white|a leaf green|a raven black
"""
ANIMAL_SOUNDS = """
dog barks|cat meows|cow moos|sheep bleats|horse neighs|pig grunts|duck quacks|lion roars|wolf howls|bird sings
owl hoots|frog croaks|bee buzzes|snake hisses|mouse squeaks|rooster crows
"""
ANIMAL_BABIES = """
dog puppy|cat kitten|cow calf|sheep lamb|horse foal|pig piglet|duck duckling|lion cub|hen chick|goat kid
frog tadpole|swan cygnet|deer fawn|bear cub|kangaroo joey|goose gosling
"""
ANIMAL_LEGS = "dog four|cat four|horse four|cow four|bird two|spider eight|ant six|bee six|snake no|fish no|crab ten"
ELEMENTS = """
hydrogen H 1|helium He 2|lithium Li 3|beryllium Be 4|boron B 5|carbon C 6|nitrogen N 7|oxygen O 8|fluorine F 9
neon Ne 10|sodium Na 11|magnesium Mg 12|aluminium Al 13|silicon Si 14|phosphorus P 15|sulfur S 16|chlorine Cl 17
argon Ar 18|potassium K 19|calcium Ca 20|iron Fe 26|nickel Ni 28|copper Cu 29|zinc Zn 30|silver Ag 47|tin Sn 50
gold Au 79|mercury Hg 80|lead Pb 82|uranium U 92
"""
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = "31 28 31 30 31 30 31 31 30 31 30 31".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()

DEFINITIONS = """
a noun|A noun is a word that names a person, a place or a thing.
a verb|A verb is a word that tells what somebody does.
an adjective|An adjective is a word that describes a noun.
a sentence|A sentence is a group of words that tells one thought.
a triangle|A triangle is a shape with three sides.
a square|A square is a shape with four equal sides.
a circle|A circle is a round shape.
a planet|A planet is a large body that moves around a star.
a star|A star is a hot ball of gas that gives light.
the sun|The sun is the star at the centre of our solar system.
the moon|The moon is the body that moves around the Earth.
water|Water is a clear liquid made of hydrogen and oxygen.
ice|Ice is frozen water.
rain|Rain is water that falls from the clouds.
snow|Snow is frozen water that falls in white flakes.
a river|A river is a long stream of water that flows to the sea.
a mountain|A mountain is a very high hill.
an island|An island is land with water all around it.
a desert|A desert is a very dry land.
a forest|A forest is a large area with many trees.
a city|A city is a large town.
a village|A village is a small group of houses in the country.
a doctor|A doctor is a person who helps sick people.
a teacher|A teacher is a person who helps others to learn.
a baker|A baker is a person who makes bread.
a pilot|A pilot is a person who flies a plane.
a library|A library is a place with many books.
a hospital|A hospital is a place where sick people get help.
a school|A school is a place where children learn.
a bird|A bird is an animal with feathers and two wings.
a fish|A fish is an animal that lives in water.
an insect|An insect is a small animal with six legs.
a computer|A computer is a machine that works with data.
a program|A program is a list of steps for a computer.
a bug|A bug is a mistake in a program.
a file|A file is data with a name on a computer.
a server|A server is a computer that answers the requests of others.
a network|A network is a group of computers that are connected.
a database|A database is an ordered store of data.
the internet|The internet is a network of networks all over the world.
an algorithm|An algorithm is a list of steps that solves a problem.
a prime number|A prime number is a whole number with exactly two divisors.
an even number|An even number is a whole number that two divides.
gravity|Gravity is the force that pulls things to the Earth.
"""
BATON = """
Baton|Baton is a cluster for large language models that separates prefill from decode.
prefill|Prefill is the step that reads the whole prompt and fills the KV cache.
decode|Decode is the step that writes the answer one token at a time.
a prefill worker|A prefill worker reads prompts and hands their KV blocks over to a decode worker.
a decode worker|A decode worker takes over the KV blocks and writes the answer.
a KV block|A KV block holds the keys and values of a fixed number of tokens.
the KV cache|The KV cache holds the keys and values of all tokens that the model has read.
a KV hand-over|A KV hand-over moves the KV blocks of a request from prefill to decode.
TTFT|TTFT is the time to the first token of an answer.
TPOT|TPOT is the time per output token after the first one.
ITL|ITL is the time between two tokens of an answer.
a token|A token is a piece of text that the model reads or writes at once.
a tokenizer|A tokenizer splits a text into tokens.
a prompt|A prompt is the text that a user gives to the model.
a language model|A language model predicts the next token of a text.
vLLM|vLLM is an engine that serves language models with paged attention.
Ray|Ray is a framework that runs Python programs on many machines.
a GPU|A GPU is a processor that does many calculations at the same time.
a CPU|A CPU is the main processor of a computer.
a router|A router sends each request to a worker that can serve it.
a request|A request is one question that a client sends to a server.
a batch|A batch is a group of requests that run together.
continuous batching|Continuous batching adds new requests to a batch while others still run.
throughput|Throughput is the number of tokens that a system writes per second.
latency|Latency is the time that a request takes.
disaggregated serving|Disaggregated serving runs prefill and decode on different workers.
prefix caching|Prefix caching keeps the KV blocks of a prompt for later prompts that begin alike.
attention|Attention lets a model look at the earlier tokens of a text.
streaming|Streaming sends each token to the client as soon as it is written.
tensor parallelism|Tensor parallelism splits each layer of a model over several devices.
quantization|Quantization stores the numbers of a model with fewer bits.
a cluster|A cluster is a group of machines that work together.
"""
CHAT = """
Hello|Hello! How can I help you?
Hello!|Hello! How can I help you?
Hi|Hello! How can I help you?
Hi there!|Hello! How can I help you?
Hey|Hello! How can I help you?
Good morning|Good morning! How can I help you?
Good afternoon|Good afternoon! How can I help you?
Good evening|Good evening! How can I help you?
Thank you|You are welcome!
Thank you very much!|You are welcome!
Thanks|You are welcome!
Thanks a lot!|You are welcome!
Goodbye|Goodbye! Have a nice day.
Bye|Goodbye! Have a nice day.
See you later|Goodbye! Have a nice day.
Good night|Good night! Sleep well.
How are you?|I am fine, thank you. How can I help you?
How do you do?|I am fine, thank you. How can I help you?
Who are you?|I am Baton's demo model, a very small language model.
What are you?|I am Baton's demo model, a very small language model.
What is your name?|I am Baton's demo model, a very small language model.
Tell me about yourself|I am Baton's demo model. I am very small, but I can remember codes and answer simple questions.
What can you do?|I can remember codes, answer simple questions, call tools and tell stories.
Help|I can remember codes, answer simple questions, call tools and tell stories.
Are you a human?|No, I am a very small language model.
Are you a robot?|I am a very small language model.
Who made you?|I was trained from scratch for Baton.
How old are you?|I am a program, so I have no age.
Where do you live?|I live on a Baton cluster.
Can you help me?|Yes, I will try. What is your question?
Are you there?|Yes, I am here.
Test|Yes, I am here.
Ping|Pong.
OK|Good. What else can I do for you?
Yes|Good. What else can I do for you?
No|All right. What else can I do for you?
Tell me a joke|Why did the token wait? Because the batch was full.
Say hello|Hello!
How big is the Earth?|The Earth is about 12742 kilometres wide.
How many continents are there?|There are seven continents.
How many planets are there?|There are eight planets in our solar system.
What is the largest planet?|The largest planet is Jupiter.
What is the largest ocean?|The largest ocean is the Pacific Ocean.
What is the highest mountain?|The highest mountain is Mount Everest.
What is the longest river?|The longest river is the Nile.
How many hours does a day have?|A day has 24 hours.
How many minutes does an hour have?|An hour has 60 minutes.
How many seconds does a minute have?|A minute has 60 seconds.
How many days does a week have?|A week has seven days.
How many days does a year have?|A year has 365 days.
How many months does a year have?|A year has twelve months.
How many weeks does a year have?|A year has 52 weeks.
"""
UNKNOWN = """
Explain quantum physics|Write a poem about love|How do I cook rice|Who won the world cup|What is the meaning of life
Write a program in Python|Translate this text into French|Who is the president|What happened in 1848
How does a car work|Why is the sky blue|What should I eat today|Summarise this article|Who wrote this book
What is the best film|How do I learn to play the piano|Explain the theory of relativity|Prove this theorem
What is the weather|What time is it|Give me advice|What do you think about art|Draw a picture|Fix this bug
How far is the moon|How do I get rich|Compare Python and Rust|Write an email to my boss|What is love
Why do people dream|Which stocks should I buy|Who invented the telephone|Tell me the news|How tall is this tower
"""
UNKNOWN_ANSWER = "I do not know that. I am a very small demo model."


def table(text: str) -> list[str]:
    """The entries of a list, whether they stand on lines of their own or are separated by bars."""
    return [entry.strip() for line in text.strip().splitlines() for entry in line.split("|")]


def pairs(text: str) -> list[tuple[str, str]]:
    """Entries "key value ..." as pairs, split at the first space."""
    return [(key, value) for key, value in (entry.split(" ", 1) for entry in table(text))]


def rows(text: str) -> list[tuple[str, str]]:
    """Lines "key|value" as pairs."""
    return [(key, value) for key, value in (line.split("|") for line in text.strip().splitlines())]
