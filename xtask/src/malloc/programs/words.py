import json,re,sys
by=int(sys.argv[1])
d={}
for i in range(200000//by):
    k="w%d"%(i*7919%50021); d.setdefault(k,[]).append(str(i))
s=json.dumps(d); e=json.loads(s)
print(len(s),sum(len(v) for v in e.values()), len(re.findall("w1[0-9]+",s)))
class A:
    def __init__(s,i): s.i=i; s.l=[i]*3
print(sum(len(A(i).l) for i in range(300000//by)))
